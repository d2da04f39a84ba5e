/** Long computations with pauses, so that the page stays responsive. */

const SLICE = 24; // milliseconds of computation between two pauses
const RESULT_INTERVAL = 120; // milliseconds between unfinished results, because their layout takes time too

/**
 * Returns the result of a generator, or null if `isStopped` returns true after a pause.
 * @param show called with unfinished results before some pauses
 * @param firstSlice milliseconds before the first pause
 */
export async function runWithPauses<P, T>(generator: Generator<P, T>, isStopped: () => boolean, show = (_: P): void => undefined, firstSlice = SLICE): Promise<T | null> {
  for (let end = performance.now() + firstSlice, lastShown = -Infinity; ; ) {
    const { done, value } = generator.next();
    if (done) return value;
    const time = performance.now();
    if (time < end) continue;
    if (time > lastShown + RESULT_INTERVAL) {
      show(value);
      lastShown = time;
    }
    await nextTurn();
    if (isStopped()) return null;
    end = performance.now() + SLICE;
  }
}

/** The next turn of the event loop. A message is faster than repeated timeouts, which browsers delay by 4 ms. */
const nextTurn = (): Promise<unknown> => new Promise((resolve) => {
  const { port1, port2 } = new MessageChannel();
  port1.onmessage = () => {
    port1.close(); // an open port stays in memory
    resolve(null);
  };
  port2.postMessage(null);
});
