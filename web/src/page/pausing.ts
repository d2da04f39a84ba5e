/** Long computations, with pauses so that the page stays responsive. */

export const SLICE = 24; // milliseconds of computing between two turns of the browser's event loop

/**
 * Returns the result of a generator, or null if it was stopped in a pause.
 * @param show called before a pause with the last yielded value
 * @param first milliseconds before the first pause
 */
export async function paused<P, T>(generator: Generator<P, T>, stops: () => boolean, show = (_: P): void => undefined, first = SLICE): Promise<T | null> {
  for (let end = performance.now() + first; ; ) {
    const { done, value } = generator.next();
    if (done) return value;
    if (performance.now() < end) continue;
    show(value);
    await new Promise((resolve) => setTimeout(resolve));
    if (stops()) return null;
    end = performance.now() + SLICE;
  }
}
