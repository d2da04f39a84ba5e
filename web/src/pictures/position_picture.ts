/** A picture whose positions can be selected: patches of an image, or times of a series. */
import type { Scale } from "./scale";

/** How weights are drawn. */
export interface WeightStyle {
  /** Weights by position; null draws the image or series without weights. */
  readonly values: Float32Array | null;
  readonly scale: Scale;
  readonly opacity: number;
  /** Smallest weight with an outline. */
  readonly minOutlined: number;
  readonly sinks: Uint8Array | null;
  /** True if sinks get no colour. */
  readonly hidesSinks: boolean;
  readonly markedPosition: number | null;
}

export interface Listeners {
  /** Called when the pointer or an arrow key moves to another position. */
  readonly hover: (position: number | null) => void;
  /** Called when a position is clicked, or activated with Enter. */
  readonly select: (position: number) => void;
}

export abstract class PositionPicture<E extends HTMLElement> {
  abstract readonly element: HTMLElement;
  protected style: WeightStyle | null = null;
  private active: number | null = null;

  constructor(protected readonly box: E, private readonly defaultPosition: number, label: string, { hover, select }: Listeners) {
    const activate = (position: number | null): void => {
      if (position === this.active) return;
      this.active = position;
      hover(position);
    };
    for (const [name, value] of Object.entries({ tabindex: 0, role: "application", "aria-label": label })) box.setAttribute(name, String(value));
    box.addEventListener("pointermove", (event) => activate(this.positionAt(event)));
    for (const leave of ["pointerleave", "blur"]) box.addEventListener(leave, () => activate(null));
    box.addEventListener("focus", () => box.matches(":focus-visible") && activate(this.current));
    box.addEventListener("click", (event) => {
      const position = this.positionAt(event);
      if (position !== null) select(position);
    });
    box.addEventListener("keydown", (event) => {
      const target = this.neighbour(event.key, this.current);
      if (event.key === "Enter" || event.key === " ") select(this.current);
      else if (event.key === "Escape") activate(null);
      else if (target === null) return;
      else activate(target);
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(box);
  }

  show(style: WeightStyle): void {
    this.style = style;
    this.draw();
  }

  /** The picture as SVG, and its height. */
  abstract createSvg(width: number): readonly [SVGElement, number];
  protected abstract hasPosition(position: number): boolean;
  protected abstract positionAt(event: MouseEvent): number | null;
  /** The position to which a key moves, or null. */
  protected abstract neighbour(key: string, position: number): number | null;
  protected abstract draw(): void;

  protected get marked(): number | null {
    const mark = this.style?.markedPosition ?? null;
    return mark !== null && this.hasPosition(mark) ? mark : null;
  }

  private get current(): number {
    return this.active ?? this.marked ?? this.defaultPosition;
  }
}
