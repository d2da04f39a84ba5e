/** A reader's corrections and terms. The browser stores them if possible, and all open pages of a model share them. */
import { withPair, type StoredPair } from "../decoder/memory";
import { Refusal } from "../decoder/refusal";
import type { Translator } from "../decoder/translator";
import { runWithPauses } from "./pausing";

/** `inFile`: the target of the replaced pair in the page's file, or null. */
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
  /** Unused corrections, because the page's file has a different, newer correction. */
  outdated: readonly (readonly [Correction, StoredPair])[] = [];
  isStored: boolean;
  /** Called when the lists change. */
  listsChanged = (): void => undefined;
  /** Called when translations may have changed. */
  translationsChanged = (): void => undefined;
  private applyCount = 0; // calls of `apply`: a new call stops earlier ones
  private lastApply: Promise<void>;

  /** @param name key in the browser's storage, or null */
  constructor(private readonly translator: Translator, private readonly name: string | null) {
    this.isStored = name !== null;
    this.lists = this.readLists();
    this.lastApply = this.apply();
    if (name !== null) addEventListener("storage", ({ key }) => (key === name || key === null) && this.useLists(this.readLists())); // changed by another page
  }

  private readLists(): Lists {
    if (!this.isStored) return this.lists;
    try {
      const lists = JSON.parse(localStorage.getItem(this.name!)!) as Lists;
      if (isLists(lists)) return { corrections: lists.corrections.map(([source, target, inFile = null]) => [source, target, inFile]), terms: lists.terms }; // an earlier format had pairs
    } catch {
      // The storage is unavailable or empty.
    }
    return { corrections: [], terms: [] };
  }

  /** Appends terms to the list, and removes terms with the same sources. */
  addTerms(terms: readonly Term[]): void {
    this.changeLists((lists) => ({ ...lists, terms: terms.reduce((list, term) => [...withoutSources(list, [term[0]]), term], lists.terms) }));
  }

  remove(kind: Kind, source: string): void {
    this.changeLists((lists) => ({ ...lists, [kind]: withoutSources<Correction | Term>(lists[kind], [source]) }));
  }

  /** Edits the stored lists, which include changes by other pages. */
  private changeLists(edit: (lists: Lists) => Lists): void {
    const lists = edit(this.readLists());
    try {
      if (this.name !== null) localStorage.setItem(this.name, JSON.stringify(lists));
      this.isStored = this.name !== null;
    } catch {
      this.isStored = false; // the storage is full or forbidden
    }
    this.useLists(lists);
  }

  private useLists(lists: Lists): void {
    this.lists = lists;
    this.listsChanged();
    this.lastApply = this.apply();
  }

  /**
   * Stores a correction in the translator's memory and appends it to the list; returns the replaced pairs.
   * @param stored called before translations change
   */
  async correct(source: string, target: string, stored: () => void): Promise<readonly StoredPair[]> {
    await this.lastApply;
    const { memory } = this.translator;
    const storedPair = (await runWithPauses(this.translator.correcting(source, target), () => false))!;
    const replaced = memory.add(storedPair);
    stored();
    const correction: Correction = [source, target, memory.inFile(storedPair)?.target ?? null];
    this.changeLists((lists) => ({ ...lists, corrections: [...withoutSources(lists.corrections, [source, ...replaced.map((old) => old.source)]), correction] }));
    return replaced;
  }

  /**
   * Updates the memory from the list, and removes replaced corrections from the list.
   * A correction in the page's file has priority unless the listed one replaced it.
   */
  private async apply(): Promise<void> {
    const run = ++this.applyCount, { memory } = this.translator;
    let pairs = memory.stored;
    const correctionOf = new Map<StoredPair, Correction>(), outdated = new Map<Correction, StoredPair>();
    for (const correction of this.lists.corrections) {
      const [source, target, replacedTarget] = correction;
      const knownPair = memory.pairs.find((stored) => stored.source === source && stored.target === target);
      const storedPair = knownPair ?? await this.compute(source, target, pairs, () => run !== this.applyCount);
      if (run !== this.applyCount) return;
      if (!storedPair || memory.stored.includes(storedPair)) continue;
      const inFile = memory.inFile(storedPair);
      if (inFile && inFile.target !== replacedTarget) outdated.set(correction, inFile);
      else {
        pairs = withPair(pairs, storedPair);
        correctionOf.set(storedPair, correction);
      }
    }
    memory.hold(pairs);
    this.outdated = [...outdated];
    const usedCorrections = new Set(pairs.map((pair) => correctionOf.get(pair)));
    this.lists = { ...this.lists, corrections: this.lists.corrections.filter((correction) => usedCorrections.has(correction) || outdated.has(correction)) };
    this.listsChanged();
    this.translationsChanged();
  }

  /** The stored pair of a correction; null if the translator rejects it. */
  private async compute(source: string, target: string, earlier: readonly StoredPair[], isStopped: () => boolean): Promise<StoredPair | null> {
    try {
      return (await runWithPauses(this.translator.correcting(source, target, earlier), isStopped)) ?? null;
    } catch (error) {
      if (error instanceof Refusal) return null;
      throw error;
    }
  }
}

const withoutSources = <T extends Correction | Term>(pairs: readonly T[], sources: readonly string[]): T[] => pairs.filter(([source]) => !sources.includes(source));
