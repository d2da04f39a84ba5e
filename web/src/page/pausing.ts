/** Long computations, with pauses so that the page stays responsive. */

const SLICE = 24; // milliseconds of computing between two turns of the browser's event loop
const SHOWN = 120; // milliseconds between two unfinished results: a long text takes as long to lay out as to compute

/**
 * Returns the result of a generator, or null if it was stopped in a pause.
 * @param show called before some pauses with the last yielded value
 * @param first milliseconds before the first pause
 */
export async function paused<P, T>(generator: Generator<P, T>, stops: () => boolean, show = (_: P): void => undefined, first = SLICE): Promise<T | null> {
  for (let end = performance.now() + first, shown = -Infinity; ; ) {
    const { done, value } = generator.next();
    if (done) return value;
    const now = performance.now();
    if (now < end) continue;
    if (now > shown + SHOWN) {
      show(value);
      shown = now;
    }
    await turn();
    if (stops()) return null;
    end = performance.now() + SLICE;
  }
}

/** The browser's next turn. Browsers delay repeated timeouts by 4 ms. */
const turn = (): Promise<unknown> => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    port1.close(); // an open port stays in memory
    resolve(null);
  };
  port2.postMessage(null);
});
