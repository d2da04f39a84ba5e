/** A reader's corrections and terms. The browser keeps them if it can, and other open pages of the model share them. */
import { withPair, type StoredPair } from "../decoder/memory";
import { Refusal } from "../decoder/refusal";
import type { Correction, Translator } from "../decoder/translator";
import { paused } from "./pausing";

export type Pairs = readonly (readonly [source: string, target: string])[];
export type Kind = "corrections" | "terms";
type Lists = Readonly<Record<Kind, Pairs>>;

const isPairs = (value: unknown): value is Pairs => Array.isArray(value) && value.every((pair) => Array.isArray(pair) && pair.length === 2 && pair.every((text) => typeof text === "string"));

export class UserPairs {
  lists: Lists = { corrections: [], terms: [] };
  isStored: boolean;
  /** Called when the lists change. */
  listed = (): void => undefined;
  /** Called when translations may have changed. */
  changed = (): void => undefined;
  private run = 0; // of `apply`: a newer run stops an older one
  private applied: Promise<void>;

  /** @param name of the browser's storage; null: none */
  constructor(private readonly translator: Translator, private readonly name: string | null) {
    this.isStored = name !== null;
    this.lists = this.read();
    this.applied = this.apply();
    if (name !== null) addEventListener("storage", ({ key }) => (key === name || key === null) && this.follow(this.read())); // of another page
  }

  private read(): Lists {
    if (!this.isStored) return this.lists;
    try {
      const { corrections, terms } = JSON.parse(localStorage.getItem(this.name!)!) as Partial<Lists>;
      if (isPairs(corrections) && isPairs(terms)) return { corrections, terms };
    } catch {
      // No storage, or nothing in it.
    }
    return { corrections: [], terms: [] };
  }

  /** Adds a pair at the end of a list, in place of the pairs of some sources. */
  add(kind: Kind, source: string, target: string, replaced: readonly string[]): void {
    this.change(kind, (pairs) => [...without(pairs, [source, ...replaced]), [source, target]]);
  }

  remove(kind: Kind, source: string): void {
    this.change(kind, (pairs) => without(pairs, [source]));
  }

  /** Changes a list; the changes of other pages stay. */
  private change(kind: Kind, change: (pairs: Pairs) => Pairs): void {
    const before = this.read();
    const lists = { ...before, [kind]: change(before[kind]) };
    try {
      if (this.name !== null) localStorage.setItem(this.name, JSON.stringify(lists));
      this.isStored = this.name !== null;
    } catch {
      this.isStored = false; // full, or forbidden
    }
    this.follow(lists);
  }

  private follow(lists: Lists): void {
    this.lists = lists;
    this.listed();
    this.applied = this.apply();
  }

  /** Stores a correction in the translator's memory, for `add`; returns it with the pairs that it replaces. */
  async correct(source: string, target: string): Promise<Correction & { readonly replaced: readonly StoredPair[] }> {
    await this.applied;
    const correction = (await paused(this.translator.correcting(source, target), () => false))!;
    return { ...correction, replaced: this.translator.memory.add(correction.pair) };
  }

  /** Makes the memory follow the list, and then the list the memory: a correction may replace another one. */
  private async apply(): Promise<void> {
    const run = ++this.run, { memory } = this.translator;
    let pairs = memory.stored;
    for (const [source, target] of this.lists.corrections) {
      const known = memory.pairs.find((pair) => pair.source === source && pair.target === target);
      const pair = known ?? await this.compute(source, target, pairs, () => run !== this.run);
      if (run !== this.run) return;
      if (pair) pairs = withPair(pairs, pair);
    }
    memory.hold(pairs);
    const added = pairs.filter((pair) => !memory.stored.includes(pair));
    this.lists = { ...this.lists, corrections: added.map(({ source, target }) => [source, target]) };
    this.listed();
    this.changed();
  }

  /** The stored pair of a correction; null if there can be none. */
  private async compute(source: string, target: string, earlier: readonly StoredPair[], stops: () => boolean): Promise<StoredPair | null> {
    try {
      return (await paused(this.translator.correcting(source, target, earlier), stops))?.pair ?? null;
    } catch (error) {
      if (error instanceof Refusal) return null;
      throw error;
    }
  }
}

const without = (pairs: Pairs, sources: readonly string[]): Pairs => pairs.filter(([source]) => !sources.includes(source));
