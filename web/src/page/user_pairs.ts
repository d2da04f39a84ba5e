/** A reader's corrections and terms. The browser stores them if it can, and other open pages of the model share them. */
import { withPair, type StoredPair } from "../decoder/memory";
import { Refusal } from "../decoder/refusal";
import type { Translator } from "../decoder/translator";
import { paused } from "./pausing";

/** `inFile`: the target of the pair in the page's file that the correction replaced; null: none. */
type Correction = readonly [source: string, target: string, inFile: string | null];
type Term = readonly [source: string, target: string];
export type Kind = "corrections" | "terms";
interface Lists {
  readonly corrections: readonly Correction[];
  readonly terms: readonly Term[];
}

const isList = (value: unknown, isRow: (row: unknown[]) => boolean): boolean => Array.isArray(value) && value.every((row) => Array.isArray(row) && isRow(row));
const areTexts = (row: unknown[]): boolean => row.every((text) => typeof text === "string");
const isLists = ({ corrections, terms }: Record<Kind, unknown>): boolean =>
  isList(terms, (row) => row.length === 2 && areTexts(row)) &&
  isList(corrections, (row) => (row.length === 2 || row.length === 3) && areTexts(row.slice(0, row[2] === null ? 2 : 3)));

export class UserPairs {
  lists: Lists = { corrections: [], terms: [] };
  /** Corrections that are not used, since the page's file has another one that they did not replace. */
  outdated: readonly (readonly [Correction, StoredPair])[] = [];
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
      const lists = JSON.parse(localStorage.getItem(this.name!)!) as Lists;
      if (isLists(lists)) return { corrections: lists.corrections.map(([source, target, inFile = null]) => [source, target, inFile]), terms: lists.terms }; // pairs in the former format
    } catch {
      // No storage, or nothing in it.
    }
    return { corrections: [], terms: [] };
  }

  /** Adds terms at the end of the list, in place of terms with the same sources. */
  addTerms(terms: readonly Term[]): void {
    this.change((lists) => ({ ...lists, terms: terms.reduce((list, term) => [...without(list, [term[0]]), term], lists.terms) }));
  }

  remove(kind: Kind, source: string): void {
    this.change((lists) => ({ ...lists, [kind]: without<Correction | Term>(lists[kind], [source]) }));
  }

  /** Changes the lists; the changes of other pages stay. */
  private change(changed: (lists: Lists) => Lists): void {
    const lists = changed(this.read());
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

  /**
   * Stores a correction in the translator's memory and at the end of the list; returns the pairs that it replaces.
   * @param stored called before translations change
   */
  async correct(source: string, target: string, stored: () => void): Promise<readonly StoredPair[]> {
    await this.applied;
    const { memory } = this.translator;
    const pair = (await paused(this.translator.correcting(source, target), () => false))!;
    const replaced = memory.add(pair);
    stored();
    const correction: Correction = [source, target, memory.inFile(pair)?.target ?? null];
    this.change((lists) => ({ ...lists, corrections: [...without(lists.corrections, [source, ...replaced.map((old) => old.source)]), correction] }));
    return replaced;
  }

  /** Makes the memory follow the list, and then the list the memory: a correction may replace another one. A correction in the file wins unless the list's one replaced it. */
  private async apply(): Promise<void> {
    const run = ++this.run, { memory } = this.translator;
    let pairs = memory.stored;
    const used = new Map<StoredPair, Correction>(), outdated = new Map<Correction, StoredPair>();
    for (const correction of this.lists.corrections) {
      const [source, target, before] = correction;
      const known = memory.pairs.find((pair) => pair.source === source && pair.target === target);
      const pair = known ?? await this.compute(source, target, pairs, () => run !== this.run);
      if (run !== this.run) return;
      if (!pair || memory.stored.includes(pair)) continue;
      const inFile = memory.inFile(pair);
      if (inFile && inFile.target !== before) outdated.set(correction, inFile);
      else {
        pairs = withPair(pairs, pair);
        used.set(pair, correction);
      }
    }
    memory.hold(pairs);
    this.outdated = [...outdated];
    const followed = new Set(pairs.map((pair) => used.get(pair)));
    this.lists = { ...this.lists, corrections: this.lists.corrections.filter((correction) => followed.has(correction) || outdated.has(correction)) };
    this.listed();
    this.changed();
  }

  /** The stored pair of a correction; null if there can be none. */
  private async compute(source: string, target: string, earlier: readonly StoredPair[], stops: () => boolean): Promise<StoredPair | null> {
    try {
      return (await paused(this.translator.correcting(source, target, earlier), stops)) ?? null;
    } catch (error) {
      if (error instanceof Refusal) return null;
      throw error;
    }
  }
}

const without = <T extends Correction | Term>(pairs: readonly T[], sources: readonly string[]): T[] => pairs.filter(([source]) => !sources.includes(source));
