/** A reader's changes to a translation, with undo and redo. */
import type { Pins } from "../decoder/network";
import type { Chosen } from "../decoder/search";
import { END } from "../decoder/tokenizer";

/** Forced words and pinned weights. */
export interface Steering extends Chosen {
  /** Steps whose token the reader selected. The other tokens come from the previous translation. */
  readonly pickedSteps: ReadonlySet<number>;
}

export const FREE: Steering = { tokens: [], pins: new Map(), pickedSteps: new Set() };

export const isFree = (steering: Steering): boolean => !steering.pickedSteps.size && !steering.pins.size;

/** Pins up to a step. The translator rewrites the words after the step. */
const pinsUntil = (pins: Chosen["pins"], step: number): Map<number, Pins> =>
  new Map([...pins].filter(([pinnedStep]) => pinnedStep <= step));

/** Removes the tokens after the last change. */
function trim({ tokens, pins, pickedSteps }: Steering): Steering {
  const end = Math.max(0, ...[...pickedSteps].map((step) => step + 1), ...pins.keys());
  return { tokens: tokens.slice(0, end), pins, pickedSteps };
}

/** Pins a weight of a step; null unpins it. */
export function pin(current: Steering, ids: readonly number[], step: number, position: number, weight: number | null): Steering {
  const pins = pinsUntil(current.pins, step);
  const stepPins = new Map(pins.get(step) ?? []);
  if (weight === null) stepPins.delete(position);
  else stepPins.set(position, weight);
  if (stepPins.size) pins.set(step, stepPins);
  else pins.delete(step);
  const pickedSteps = new Set([...current.pickedSteps].filter((pickedStep) => pickedStep <= step));
  const tokens = pickedSteps.has(step) ? [...ids, END].slice(0, step + 1) : ids.slice(0, step);
  return trim({ tokens, pins, pickedSteps });
}

/** Selects another word for a step. */
export function pick(current: Steering, ids: readonly number[], step: number, token: number): Steering {
  const pickedSteps = new Set([...current.pickedSteps].filter((pickedStep) => pickedStep < step)).add(step);
  return { tokens: [...ids.slice(0, step), token], pins: pinsUntil(current.pins, step), pickedSteps };
}

/** The undo history of a steering. */
export class History {
  private entries: Steering[] = [FREE];
  private index = 0;
  private isLive = false;

  get current(): Steering {
    return this.entries[this.index]!;
  }

  get canUndo(): boolean {
    return this.index > 0;
  }

  get canRedo(): boolean {
    return this.index + 1 < this.entries.length;
  }

  /** @param live true during a drag: the next push replaces this entry */
  push(steering: Steering, live = false): void {
    if (this.isLive) this.index--;
    this.entries = [...this.entries.slice(0, this.index + 1), steering];
    this.index++;
    this.isLive = live;
  }

  undo(): void {
    if (this.canUndo) this.index--;
    this.isLive = false;
  }

  redo(): void {
    if (this.canRedo) this.index++;
    this.isLive = false;
  }

  clear(start: Steering = FREE): void {
    this.entries = isFree(start) ? [FREE] : [FREE, start];
    this.index = this.entries.length - 1;
    this.isLive = false;
  }
}
