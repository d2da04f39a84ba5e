/** Two lists of tokens in one scrolling box, with a canvas between them, and a search. */
import { fold, h, visible } from "./dom";
import { t } from "./strings";

export const ROW = 20; // height of a token, in pixels
const TALL = 700; // largest height of the box, in pixels

export type Token = readonly [text: string, special: boolean, continues: boolean];
export type Side = 0 | 1; // queries, keys
export type Spot = readonly [side: Side, token: number];

/** A token as it is shown, never without a visible letter. */
export const written = ([text]: Token): string => visible(text) || "∅";

/** By key: rows to move, and the side to move to. */
const KEYS: Record<string, readonly [rows: number, side?: Side]> = {
  ArrowDown: [1], ArrowUp: [-1], PageDown: [TALL / ROW - 1], PageUp: [1 - TALL / ROW], Home: [-Infinity], End: [Infinity], ArrowLeft: [0, 0], ArrowRight: [0, 1],
};

export class Columns {
  readonly canvas = h("canvas", { "aria-hidden": "true" });
  readonly element: HTMLElement;
  readonly box: HTMLElement;
  /** The tokens of each side that are shown, in rows; and the row of each token, or -1. */
  rows: readonly [readonly number[], readonly number[]] = [[], []];
  readonly rowOf: readonly [Int32Array, Int32Array];
  height = 0;
  private readonly buttons: readonly HTMLButtonElement[][];
  private readonly stage: HTMLElement;
  private readonly range = h("span");
  private readonly count = h("span", { role: "status" });
  private readonly finder = h("input", {
    type: "search", placeholder: t("view-find"), "aria-label": t("view-find"), autocomplete: "off", spellcheck: "false", dir: "auto",
    input: () => this.find(-1), keydown: (event: KeyboardEvent) => event.key === "Enter" && this.find(this.foundRow),
  });
  private readonly tools = h("div", { class: "choices tools" }, this.finder, this.range, this.count);
  private foundRow = -1;
  private focused: Spot | null = null;
  private over: Spot | null = null;

  /**
   * @param look called for the token that is pointed at, or that the keyboard is at, and again when the lists move
   * @param choose called for a token that is clicked, or Enter pressed on it
   */
  constructor(private readonly tokens: readonly [readonly Token[], readonly Token[]], private readonly look: (spot: Spot | null) => void, choose: (spot: Spot) => void) {
    this.rowOf = [new Int32Array(tokens[0].length), new Int32Array(tokens[1].length)];
    this.buttons = ([0, 1] as const).map((side) => tokens[side].map((token, k) => {
      const spot = [side, k] as const;
      return h("button", {
        type: "button", tabindex: -1, dir: "auto", title: `${written(token)} · ${k}`, class: token[2] && "continues", click: () => choose(spot),
        pointermove: () => this.over !== spot && this.update(spot), // "pointerenter" comes also when the lists move and the pointer does not
        pointerleave: () => this.over === spot && this.update(null), blur: () => this.update(null, null),
        focus: (event: Event) => this.update((event.target as Element).matches(":focus-visible") ? spot : null, spot),
      }, written(token));
    }));
    const list = (side: Side): HTMLElement => h("div", { class: `tokens ${side ? "to" : "from"}`, role: "group", "aria-label": t(side ? "keys" : "queries") }, ...this.buttons[side]!);
    this.stage = h("div", { class: "stage" }, list(0), this.canvas, list(1));
    this.box = h("div", {
      class: "columns", tabindex: 0, role: "group", "aria-label": t("view-heads"), scroll: () => this.update(), keydown: (event: KeyboardEvent) => this.go(event),
    }, this.stage);
    this.element = h("div", {}, this.tools, this.box);
    new ResizeObserver(() => this.update()).observe(this.canvas);
  }

  /** Shows all tokens, or those that are not special, and marks the chosen ones. */
  show(special: boolean, chosen: readonly [number | null, number | null]): void {
    const rows = this.tokens.map((tokens) => {
      const shown = [...tokens.keys()].filter((k) => special || !tokens[k]![1]);
      return shown.length ? shown : [...tokens.keys()];
    });
    this.rows = [rows[0]!, rows[1]!];
    this.rows.forEach((shown, side) => {
      this.rowOf[side]!.fill(-1);
      shown.forEach((token, row) => (this.rowOf[side]![token] = row));
      this.buttons[side]!.forEach((button, token) => {
        button.hidden = this.rowOf[side]![token]! < 0;
        button.setAttribute("aria-pressed", String(chosen[side] === token));
      });
    });
    const all = Math.max(...rows.map(({ length }) => length)) * ROW;
    this.height = Math.min(TALL, all + 8);
    this.box.style.height = this.canvas.style.height = `${this.height}px`;
    this.stage.style.height = `${all + 8}px`;
    this.tools.hidden = all <= TALL;
    this.update();
  }

  /** Scrolls the lists, not the page, to a row that is out of view. */
  reveal(row: number): void {
    const y = row * ROW;
    if (y < this.box.scrollTop || y + ROW > this.box.scrollTop + this.height) this.box.scrollTop = y - this.height / 2;
  }

  private update(over = this.over, focused = this.focused): void {
    [this.over, this.focused] = [over, focused];
    const [first, count] = [Math.floor(this.box.scrollTop / ROW), Math.max(...this.rows.map(({ length }) => length))];
    this.range.textContent = t("view-range", first + 1, Math.min(first + TALL / ROW, count), count);
    this.look(over);
  }

  private go(event: KeyboardEvent): void {
    const [move, side = this.focused?.[0] ?? 0] = KEYS[event.key] ?? [];
    if (move === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const row = this.focused ? this.rowOf[this.focused[0]][this.focused[1]]! + move : Math.ceil(this.box.scrollTop / ROW);
    this.buttons[side]![this.rows[side][Math.max(0, Math.min(row, this.rows[side].length - 1))]!]!.focus();
  }

  /** Marks the tokens of words that have a text in them, and scrolls to the first below a row. */
  private find(below: number): void {
    const wanted = fold(this.finder.value.trim());
    const rows = this.tokens.flatMap((tokens, side) => {
      const matching = new Set(wanted ? wordsWith(tokens, wanted) : []);
      this.buttons[side]!.forEach((button, token) => button.classList.toggle("found", matching.has(token)));
      return [...matching].map((token) => this.rowOf[side]![token]!).filter((row) => row >= 0);
    }).sort((one, other) => one - other);
    this.count.textContent = wanted && t("view-found", new Set(rows).size);
    this.foundRow = rows.find((row) => row > below) ?? rows[0] ?? -1;
    if (rows.length) this.reveal(this.foundRow);
  }
}

/** The tokens of words, whole or in parts, that have a text in them. */
function wordsWith(tokens: readonly Token[], wanted: string): number[] {
  const words: number[][] = [];
  tokens.forEach(([, , continues], k) => (continues && words.length ? words.at(-1)!.push(k) : words.push([k])));
  return words.filter((word) => fold(word.map((k) => written(tokens[k]!)).join("")).includes(wanted)).flat();
}
