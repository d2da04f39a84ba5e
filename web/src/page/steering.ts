/** A reader's changes to a translation, with undo and redo. */
import type { Pins } from "../decoder/network";
import type { Chosen } from "../decoder/search";
import { END } from "../decoder/tokenizer";

/** Forced words and pinned weights. */
export interface Steering extends Chosen {
  /** Steps whose token the reader picked; the others are kept from the translation before. */
  readonly picked: ReadonlySet<number>;
}

export const FREE: Steering = { tokens: [], pins: new Map(), picked: new Set() };

export const isFree = (steering: Steering): boolean => !steering.picked.size && !steering.pins.size;

/** Pins up to a step; the words behind it are written anew. */
const until = (pins: Chosen["pins"], step: number): Map<number, Pins> =>
  new Map([...pins].filter(([pinnedStep]) => pinnedStep <= step));

/** A steering without tokens behind its last change. */
function trimmed({ tokens, pins, picked }: Steering): Steering {
  const last = Math.max(0, ...[...picked].map((step) => step + 1), ...pins.keys());
  return { tokens: tokens.slice(0, last), pins, picked };
}

/** Pins a weight of a step; null releases it. */
export function pin(now: Steering, ids: readonly number[], step: number, position: number, weight: number | null): Steering {
  const pins = until(now.pins, step);
  const stepPins = new Map(pins.get(step) ?? []);
  if (weight === null) stepPins.delete(position);
  else stepPins.set(position, weight);
  if (stepPins.size) pins.set(step, stepPins);
  else pins.delete(step);
  const picked = new Set([...now.picked].filter((pickedStep) => pickedStep <= step));
  const written = picked.has(step) ? [...ids, END].slice(0, step + 1) : ids.slice(0, step);
  return trimmed({ tokens: written, pins, picked });
}

/** Picks another word for a step. */
export function pick(now: Steering, ids: readonly number[], step: number, token: number): Steering {
  const picked = new Set([...now.picked].filter((pickedStep) => pickedStep < step)).add(step);
  return { tokens: [...ids.slice(0, step), token], pins: until(now.pins, step), picked };
}

/** Undo history. */
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

  /** @param live true while a slider is dragged: the next push replaces this entry */
  push(next: Steering, live = false): void {
    if (this.live) this.at--;
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
