/** Dragging of SVG elements by pointer, finger or arrow keys. */

/**
 * @param moveTo called with the pointer's position, in the drawing's units
 * @param moveBy called for an arrow key with −1, 0 or 1 in each direction, or five times as much with Shift
 */
export function makeDraggable(
  drawing: SVGSVGElement, handle: SVGElement, moveTo: (point: [number, number]) => void, moveBy: (dx: number, dy: number) => void,
): void {
  const pointOf = (event: PointerEvent): [number, number] => {
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(drawing.getScreenCTM()!.inverse());
    return [point.x, point.y];
  };
  handle.addEventListener("pointerdown", (event) => {
    handle.setPointerCapture(event.pointerId);
    handle.focus({ preventScroll: true });
    event.preventDefault();
  });
  handle.addEventListener("pointermove", (event) => {
    if (handle.hasPointerCapture(event.pointerId)) moveTo(pointOf(event));
  });
  handle.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!step) return;
    const factor = event.shiftKey ? 5 : 1;
    moveBy(step[0]! * factor, step[1]! * factor);
    event.preventDefault();
  });
}
