/** Dragging of SVG elements by pointer, finger or arrow keys. */

/**
 * @param to called with the pointer's position, in the drawing's units
 * @param by called for an arrow key with −1, 0 or 1 in each direction; five times that with Shift
 */
export function draggable(
  drawing: SVGSVGElement, handle: SVGElement, to: (place: [number, number]) => void, by: (dx: number, dy: number) => void,
): void {
  const placeOf = (event: PointerEvent): [number, number] => {
    const place = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM()!.inverse());
    return [place.x, place.y];
  };
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    handle.focus({ preventScroll: true });
    event.preventDefault();
  });
  handle.addEventListener("pointermove", (event) => {
    if (handle.hasPointerCapture(event.pointerId)) to(placeOf(event));
  });
  handle.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    const much = event.shiftKey ? 5 : 1;
    by(step[0]! * much, step[1]! * much);
    event.preventDefault();
  });
}
