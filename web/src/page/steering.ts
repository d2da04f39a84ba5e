/** What a reader has changed, and how one change follows another. */
import type { Pins } from "../decoder/network";
import type { Chosen } from "../decoder/search";
import { END } from "../decoder/tokenizer";

/** Words that were kept or picked, and weights that were pinned. */
export interface Steering extends Chosen {
  /** Which of the tokens were picked, rather than kept. */
  readonly picked: ReadonlySet<number>;
}

export const FREE: Steering = { tokens: [], pins: new Map(), picked: new Set() };

export const isFree = (steering: Steering): boolean => !steering.picked.size && !steering.pins.size;

/** Pins up to a step; later ones were of words that are written anew. */
const until = (pins: Chosen["pins"], step: number): Map<number, Pins> =>
  new Map([...pins].filter(([each]) => each <= step));

/** Only as many tokens are kept as the last change needs. */
function trimmed({ tokens, pins, picked }: Steering): Steering {
  const last = Math.max(0, ...[...picked].map((step) => step + 1), ...pins.keys());
  return { tokens: tokens.slice(0, last), pins, picked };
}

/** Pin a weight of a step, or let go of it (null). */
export function pin(now: Steering, ids: readonly number[], step: number, place: number, weight: number | null): Steering {
  const pins = until(now.pins, step);
  const own = new Map(pins.get(step) ?? []);
  if (weight === null) own.delete(place);
  else own.set(place, weight);
  if (own.size) pins.set(step, own);
  else pins.delete(step);
  const picked = new Set([...now.picked].filter((each) => each <= step));
  const written = picked.has(step) ? [...ids, END].slice(0, step + 1) : ids.slice(0, step);
  return trimmed({ tokens: written, pins, picked });
}

/** Write another word at a step. */
export function pick(now: Steering, ids: readonly number[], step: number, token: number): Steering {
  const picked = new Set([...now.picked].filter((each) => each < step)).add(step);
  return { tokens: [...ids.slice(0, step), token], pins: until(now.pins, step), picked };
}

/** What was done, one after the other, to go back and forth in. */
export class History {
  private entries: Steering[] = [FREE];
  private at = 0;
  private live = false;

  get now(): Steering {
    return this.entries[this.at]!;
  }

  get canUndo(): boolean {
    return this.at > 0;
  }

  get canRedo(): boolean {
    return this.at + 1 < this.entries.length;
  }

  /** @param live whether this is on the way to something, as a slider that is being dragged */
  push(next: Steering, live = false): void {
    if (this.live) this.at--; // what was on the way is replaced
    this.entries = [...this.entries.slice(0, this.at + 1), next];
    this.at++;
    this.live = live;
  }

  undo(): void {
    if (this.canUndo) this.at--;
    this.live = false;
  }

  redo(): void {
    if (this.canRedo) this.at++;
    this.live = false;
  }

  clear(start: Steering = FREE): void {
    this.entries = isFree(start) ? [FREE] : [FREE, start];
    this.at = this.entries.length - 1;
    this.live = false;
  }
}
