/** A picture of positions that can be pointed at: patches of an image, or times of a series. */
import type { Scale } from "./scale";

/** How weights are drawn. */
export interface Look {
  /** Weights by position; null: the image or series without weights. */
  readonly values: Float32Array | null;
  readonly scale: Scale;
  readonly opacity: number;
  /** Least weight with an outline. */
  readonly outlined: number;
  readonly sinks: Uint8Array | null;
  /** Whether sinks have no colour. */
  readonly hidden: boolean;
  /** The marked position. */
  readonly mark: number | null;
}

export interface Listeners {
  /** Called for the position that is pointed at, or that the keyboard is at. */
  readonly look: (position: number | null) => void;
  /** Called for a position that is clicked, or Enter pressed on it. */
  readonly choose: (position: number) => void;
}

export abstract class Placed<E extends HTMLElement> {
  abstract readonly element: HTMLElement;
  protected drawn: Look | null = null;
  private at: number | null = null;

  constructor(protected readonly box: E, private readonly first: number, label: string, { look, choose }: Listeners) {
    const go = (position: number | null): void => {
      if (position === this.at) return;
      this.at = position;
      look(position);
    };
    for (const [name, value] of Object.entries({ tabindex: 0, role: "application", "aria-label": label })) box.setAttribute(name, String(value));
    box.addEventListener("pointermove", (event) => go(this.positionAt(event)));
    for (const leave of ["pointerleave", "blur"]) box.addEventListener(leave, () => go(null));
    box.addEventListener("focus", () => box.matches(":focus-visible") && go(this.current));
    box.addEventListener("click", (event) => {
      const position = this.positionAt(event);
      if (position !== null) choose(position);
    });
    box.addEventListener("keydown", (event) => {
      const to = this.step(event.key, this.current);
      if (event.key === "Enter" || event.key === " ") choose(this.current);
      else if (event.key === "Escape") go(null);
      else if (to === null) return;
      else go(to);
      event.preventDefault();
    });
    new ResizeObserver(() => this.draw()).observe(box);
  }

  show(look: Look): void {
    this.drawn = look;
    this.draw();
  }

  /** The picture as SVG at some width; and its height. */
  abstract svg(width: number): readonly [SVGElement, number];
  protected abstract has(position: number): boolean;
  protected abstract positionAt(event: MouseEvent): number | null;
  /** The position to which a key moves; null: none. */
  protected abstract step(key: string, from: number): number | null;
  protected abstract draw(): void;

  protected get marked(): number | null {
    const mark = this.drawn?.mark ?? null;
    return mark !== null && this.has(mark) ? mark : null;
  }

  private get current(): number {
    return this.at ?? this.marked ?? this.first;
  }
}
