/** Two lists of tokens in one scrolling box, with a canvas between them, and a search. */
import { fold, h, makeVisible } from "./dom";
import { t } from "./strings";
import type { Side, Spot, Token } from "./view_data";

export const ROW = 20; // height of a token, in pixels
const MAX_HEIGHT = 700; // of the box, in pixels

/** The text of a token with visible signs for white space; ∅ if it is empty. */
export const tokenText = ([text]: Token): string => makeVisible(text) || "∅";

/** The rows and the list to which each key moves the focus. */
const KEYS: Record<string, readonly [rows: number, side?: Side]> = {
  ArrowDown: [1], ArrowUp: [-1], PageDown: [MAX_HEIGHT / ROW - 1], PageUp: [1 - MAX_HEIGHT / ROW], Home: [-Infinity], End: [Infinity], ArrowLeft: [0, 0], ArrowRight: [0, 1],
};

export class Columns {
  readonly canvas = h("canvas", { "aria-hidden": "true" });
  readonly element: HTMLElement;
  readonly box: HTMLElement;
  /** The visible tokens of each side, by row; and the row of each token, or −1. */
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
  private hovered: Spot | null = null;

  /**
   * @param hover called when the pointer or the focus moves to a token, and again when the lists scroll
   * @param select called when a token is clicked, or activated with Enter
   */
  constructor(private readonly tokens: readonly [readonly Token[], readonly Token[]], private readonly hover: (spot: Spot | null) => void, select: (spot: Spot) => void) {
    this.rowOf = [new Int32Array(tokens[0].length), new Int32Array(tokens[1].length)];
    this.buttons = ([0, 1] as const).map((side) => tokens[side].map((token, k) => {
      const spot = [side, k] as const;
      return h("button", {
        type: "button", tabindex: -1, dir: "auto", title: `${tokenText(token)} · ${k}`, class: token[2] && "continues", click: () => select(spot),
        pointermove: () => this.hovered !== spot && this.update(spot), // browsers also send "pointerenter" when the lists scroll under a resting pointer
        pointerleave: () => this.hovered === spot && this.update(null), blur: () => this.update(null, null),
        focus: (event: Event) => this.update((event.target as Element).matches(":focus-visible") ? spot : null, spot),
      }, tokenText(token));
    }));
    const createList = (side: Side): HTMLElement => h("div", { class: `tokens ${side ? "to" : "from"}`, role: "group", "aria-label": t(side ? "keys" : "queries") }, ...this.buttons[side]!);
    this.stage = h("div", { class: "stage" }, createList(0), this.canvas, createList(1));
    this.box = h("div", {
      class: "columns", tabindex: 0, role: "group", "aria-label": t("view-heads"), scroll: () => this.update(), keydown: (event: KeyboardEvent) => this.moveFocus(event),
    }, this.stage);
    this.element = h("div", {}, this.tools, this.box);
    new ResizeObserver(() => this.update()).observe(this.canvas);
  }

  /** Shows all tokens, or only tokens that are not special, and marks the selected ones. */
  show(special: boolean, selected: readonly [number | null, number | null]): void {
    const rows = this.tokens.map((tokens) => {
      const visibleTokens = [...tokens.keys()].filter((k) => special || !tokens[k]![1]);
      return visibleTokens.length ? visibleTokens : [...tokens.keys()];
    });
    this.rows = [rows[0]!, rows[1]!];
    this.rows.forEach((visibleTokens, side) => {
      this.rowOf[side]!.fill(-1);
      visibleTokens.forEach((token, row) => (this.rowOf[side]![token] = row));
      this.buttons[side]!.forEach((button, token) => {
        button.hidden = this.rowOf[side]![token]! < 0;
        button.setAttribute("aria-pressed", String(selected[side] === token));
      });
    });
    const contentHeight = Math.max(...rows.map(({ length }) => length)) * ROW;
    this.height = Math.min(MAX_HEIGHT, contentHeight + 8);
    this.box.style.height = this.canvas.style.height = `${this.height}px`;
    this.stage.style.height = `${contentHeight + 8}px`;
    this.tools.hidden = contentHeight <= MAX_HEIGHT;
    this.update();
  }

  /** Scrolls the lists, not the page, to a hidden row. */
  reveal(row: number): void {
    const y = row * ROW;
    if (y < this.box.scrollTop || y + ROW > this.box.scrollTop + this.height) this.box.scrollTop = y - this.height / 2;
  }

  private update(hovered = this.hovered, focused = this.focused): void {
    [this.hovered, this.focused] = [hovered, focused];
    const [firstRow, count] = [Math.floor(this.box.scrollTop / ROW), Math.max(...this.rows.map(({ length }) => length))];
    this.range.textContent = t("view-range", firstRow + 1, Math.min(firstRow + MAX_HEIGHT / ROW, count), count);
    this.hover(hovered);
  }

  private moveFocus(event: KeyboardEvent): void {
    const [rows, side = this.focused?.[0] ?? 0] = KEYS[event.key] ?? [];
    if (rows === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const row = this.focused ? this.rowOf[this.focused[0]][this.focused[1]]! + rows : Math.ceil(this.box.scrollTop / ROW);
    this.buttons[side]![this.rows[side][Math.max(0, Math.min(row, this.rows[side].length - 1))]!]!.focus();
  }

  /** Marks the tokens of words that contain the searched text, and scrolls to the first one below a row. */
  private find(below: number): void {
    const query = fold(this.finder.value.trim());
    const rows = this.tokens.flatMap((tokens, side) => {
      const matching = new Set(query ? wordsWith(tokens, query) : []);
      this.buttons[side]!.forEach((button, token) => button.classList.toggle("found", matching.has(token)));
      return [...matching].map((token) => this.rowOf[side]![token]!).filter((row) => row >= 0);
    }).sort((a, b) => a - b);
    this.count.textContent = query && t("view-match-count", new Set(rows).size);
    this.foundRow = rows.find((row) => row > below) ?? rows[0] ?? -1;
    if (rows.length) this.reveal(this.foundRow);
  }
}

/** The tokens of all words that contain a text, also of words with several tokens. */
function wordsWith(tokens: readonly Token[], query: string): number[] {
  const words: number[][] = [];
  tokens.forEach(([, , continues], k) => (continues && words.length ? words.at(-1)!.push(k) : words.push([k])));
  return words.filter((word) => fold(word.map((k) => tokenText(tokens[k]!)).join("")).includes(query)).flat();
}
