/** Elements in one expression each. */

type Child = Node | string | null | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

const SVG = "http://www.w3.org/2000/svg";

function filled<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== false));
  return element;
}

/** An HTML element; attributes that are functions are listeners. */
export function h<K extends keyof HTMLElementTagNameMap>(
  name: K, attributes: Attributes = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  return filled(document.createElement(name), attributes, children);
}

/** An SVG element, likewise. */
export function s<K extends keyof SVGElementTagNameMap>(
  name: K, attributes: Attributes = {}, ...children: Child[]
): SVGElementTagNameMap[K] {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

/** What has the keyboard in the document, or in the shadow, of an element. */
export const activeIn = (element: Element): Element | null => (element.getRootNode() as Document | ShadowRoot).activeElement ?? null;

/** The colour behind an element: its own, or that of the nearest around it that has one. */
export function backgroundOf(element: Element): string {
  for (let each: Element | null = element; each; each = each.parentElement ?? (each.getRootNode() as ShadowRoot).host ?? null) {
    const colour = getComputedStyle(each).backgroundColor;
    if (!/^transparent$|, 0\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
}

let family = "sans-serif";
let writer: Element | null = null;

/** Measure letters as an element writes them, from when it is in a page: before, it has no font. */
export function writeAs(element: Element): void {
  writer = element;
}

function fonts(): string {
  if (writer?.isConnected) {
    family = getComputedStyle(writer).fontFamily;
    writer = null;
  }
  return family;
}

let canvas: CanvasRenderingContext2D | null = null;
const SHOWN = 200; // letters of a word that are shown at most; a browser takes long to measure thousands

function measured(text: string, size: number, weight = 400): number {
  canvas ??= document.createElement("canvas").getContext("2d");
  if (!canvas) return text.length * size * 0.6;
  canvas.font = `${weight} ${size}px ${fonts()}`;
  return canvas.measureText(text).width;
}

/** The width of a text on the screen, as far as it is ever shown, in CSS pixels. */
export const widthOf = (text: string, size: number, weight = 400): number => measured(text.slice(0, SHOWN), size, weight);

/** A text of at most so many pixels, and of one letter at least. */
export function shortened(text: string, most: number, size: number): string {
  if (text.length <= SHOWN && measured(text, size) <= most) return text;
  const letters = [...text].slice(0, SHOWN);
  const first = (count: number): string => `${letters.slice(0, count).join("")}…`;
  let [fits, over] = [1, letters.length + 1];
  while (over - fits > 1) {
    const half = (fits + over) >> 1;
    if (measured(first(half), size) <= most) fits = half;
    else over = half;
  }
  return first(fits);
}

/** Whether a text is written from right to left, by its first letter that says so. */
export const isRightToLeft = (text: string): boolean =>
  /^[^\p{L}]*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(text);

/** What a page can show of any text: no control characters, and no character that has no width. */
export const visible = (text: string): string =>
  text.replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (letter) => `⟨${letter.codePointAt(0)!.toString(16).toUpperCase()}⟩`);

/** Words as a page can show them, equal ones numbered: I¹, am, I². */
export function numbered(words: readonly string[]): string[] {
  const shown = words.map(visible);
  const [total, before] = [new Map<string, number>(), new Map<string, number>()];
  for (const word of shown) total.set(word, (total.get(word) ?? 0) + 1);
  return shown.map((word) => {
    if (total.get(word) === 1) return word;
    const count = (before.get(word) ?? 0) + 1;
    before.set(word, count);
    return word + String(count).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]!);
  });
}
