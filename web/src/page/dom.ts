/** Helpers for elements and texts: creation, marks, measured widths and visible characters. */
import { TAG } from "../decoder/markup";

type Child = Node | string | null | false;
type Attributes = Record<string, string | number | boolean | null | undefined | ((event: never) => void)>;

const SVG = "http://www.w3.org/2000/svg";

function fillElement<E extends Element>(element: E, attributes: Attributes, children: Child[]): E {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name, value as EventListener);
    else element.setAttribute(name, value === true ? "" : String(value));
  }
  element.append(...children.filter((child): child is Node | string => child !== null && child !== false));
  return element;
}

/** Creates an HTML element. Functions among the attributes become listeners. */
export function h<K extends keyof HTMLElementTagNameMap>(
  name: K, attributes: Attributes = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  return fillElement(document.createElement(name), attributes, children);
}

/** Creates an SVG element. Functions among the attributes become listeners. */
export function s<K extends keyof SVGElementTagNameMap>(
  name: K, attributes: Attributes = {}, ...children: Child[]
): SVGElementTagNameMap[K] {
  return fillElement(document.createElementNS(SVG, name), attributes, children);
}

const NEAR = "800px 0px"; // around the window

/** Calls a function once, when the reader scrolls near an element. */
export function whenNear(element: Element, callback: () => void): void {
  const observer = new IntersectionObserver((entries) => {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    observer.disconnect();
    callback();
  }, { rootMargin: NEAR });
  observer.observe(element);
}

/** Draws cards near the window, and again when their container changes its width. Returns the set of cards near the window. */
export function drawNear<Card extends { readonly element: Element }>(container: HTMLElement, cards: readonly Card[], draw: (card: Card) => void): ReadonlySet<Card> {
  const [nearCards, byElement] = [new Set<Card>(), new Map<Element, Card>(cards.map((card) => [card.element, card]))];
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const card = byElement.get(target)!;
      if (!isIntersecting) nearCards.delete(card);
      else if (!nearCards.has(card)) draw((nearCards.add(card), card));
    }
  }, { rootMargin: NEAR });
  let width = 0;
  new ResizeObserver(() => {
    if (!container.clientWidth || container.clientWidth === width) return;
    if (width) for (const card of nearCards) draw(card);
    else for (const { element } of cards) observer.observe(element);
    width = container.clientWidth;
  }).observe(container);
  return nearCards;
}

/** A menu of buttons. It closes after a click, with Escape, or when the focus leaves it. */
export function createMenu(label: string, ...items: HTMLElement[]): HTMLElement {
  const close = (): void => element.removeAttribute("open");
  const element: HTMLDetailsElement = h("details", {
    class: "menu",
    focusout: (event: FocusEvent) => !element.contains(event.relatedTarget as Node | null) && close(),
    keydown: (event: KeyboardEvent) => {
      if (event.key !== "Escape") return;
      close();
      element.querySelector("summary")!.focus();
    },
  }, h("summary", { class: "icon", "aria-label": label, title: label }, "⋯"), h("div", { class: "tools" }, ...items));
  for (const item of items) {
    item.addEventListener("click", () => {
      close();
      element.querySelector("summary")!.focus();
    });
  }
  return element;
}

/** The text of an HTML character reference; "" for control characters, as in Python. */
export function decodeReference(reference: string): string {
  const { body } = new DOMParser().parseFromString(`<p>${reference}`, "text/html"); // <p> keeps white space
  return body.textContent.replace(/[\x01-\x08\x0b\x0e-\x1f\x7f\p{Noncharacter_Code_Point}]/gu, "");
}

/** HTML as text, with each tag in a <bdi> element so that it does not affect the text's direction. */
export function markTags(html: string): (HTMLElement | string)[] {
  const nodes: (HTMLElement | string)[] = [];
  let end = 0;
  for (const { 0: tag, index } of html.matchAll(TAG)) {
    nodes.push(html.slice(end, index), h("bdi", { class: "tag" }, tag));
    end = index + tag.length;
  }
  return [...nodes, html.slice(end)];
}

const TAGS_AND_WORDS = new RegExp(`${TAG.source}|[^<\\s]+\\s*|\\s+`, TAG.flags);

/** A text with the words between the common beginning and the common end of two texts in <mark>. */
export function markChanges(text: string, original: string, html = false): (HTMLElement | string)[] {
  const pattern = html ? TAGS_AND_WORDS : /\S+\s*/gu;
  const nodesOf = html ? markTags : (html: string): string[] => [html];
  const [words, originalWords] = [text, original].map((string) => string.match(pattern) ?? []) as string[][];
  const shorter = Math.min(words.length, originalWords.length);
  let [start, end] = [0, 0];
  while (start < shorter && words[start]!.trim() === originalWords[start]!.trim()) start++;
  while (end < shorter - start && words.at(-1 - end)!.trim() === originalWords.at(-1 - end)!.trim()) end++;
  const pieces = [words.slice(0, start), words.slice(start, words.length - end), words.slice(words.length - end)].map((piece) => piece.join(""));
  const [, changedText, space] = /^([^]*?)(\s*)$/u.exec(pieces[1]!)!;
  return [...nodesOf(pieces[0]!), changedText ? h("mark", {}, ...nodesOf(changedText)) : "", ...nodesOf(space! + pieces[2]!)];
}

/** The focused element in the document or shadow root of an element. */
export const activeIn = (element: Element): Element | null => (element.getRootNode() as Document | ShadowRoot).activeElement ?? null;

/** The first opaque background colour of an element and its ancestors. */
export function backgroundOf(element: Element): string {
  for (let ancestor: Element | null = element; ancestor; ancestor = ancestor.parentElement ?? (ancestor.getRootNode() as ShadowRoot).host ?? null) {
    const colour = getComputedStyle(ancestor).backgroundColor;
    if (!/^transparent$|, 0\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
}

export const bytesOfBase64 = (base64: string): Uint8Array<ArrayBuffer> => Uint8Array.from(atob(base64), (letter) => letter.charCodeAt(0));

let family = "sans-serif";
let fontElement: Element | null = null;

/** Sets the element whose font measures texts. The font is read once the element is in a page. */
export function useFontOf(element: Element): void {
  fontElement = element;
}

function readFontFamily(): string {
  if (fontElement?.isConnected) {
    family = getComputedStyle(fontElement).fontFamily;
    fontElement = null;
  }
  return family;
}

let canvas: CanvasRenderingContext2D | null = null;
const MAX_LETTERS = 200; // visible letters of a word; measuring thousands takes seconds

function measureWidth(text: string, size: number, weight = 400): number {
  canvas ??= document.createElement("canvas").getContext("2d");
  if (!canvas) return text.length * size * 0.6;
  canvas.font = `${weight} ${size}px ${readFontFamily()}`;
  return canvas.measureText(text).width;
}

/** Width in CSS pixels of the first `MAX_LETTERS` letters of a text. */
export const widthOf = (text: string, size: number, weight = 400): number => measureWidth(text.slice(0, MAX_LETTERS), size, weight);

/** A text cut to `maxWidth` pixels, with … at the end if it was cut. At least one letter stays. */
export function shorten(text: string, maxWidth: number, size: number): string {
  if (text.length <= MAX_LETTERS && measureWidth(text, size) <= maxWidth) return text;
  const letters = [...text].slice(0, MAX_LETTERS);
  const prefixOf = (count: number): string => `${letters.slice(0, count).join("")}…`;
  let [fitting, tooLong] = [1, letters.length + 1];
  while (tooLong - fitting > 1) {
    const middle = (fitting + tooLong) >> 1;
    if (measureWidth(prefixOf(middle), size) <= maxWidth) fitting = middle;
    else tooLong = middle;
  }
  return prefixOf(fitting);
}

/** True if the first letter belongs to a right-to-left script. */
export const isRightToLeft = (text: string): boolean =>
  /^[^\p{L}]*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(text);

const WHITE_SPACE: Record<string, string> = { "\n": "⏎", "\t": "⇥" };

/** A text with signs for line breaks, tabs and texts of only white space, and codes such as ⟨200B⟩ for invisible characters. */
export const makeVisible = (text: string): string =>
  text.replace(/^\p{Zs}*$/u, (spaces) => "␣".repeat(spaces.length))
    .replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (letter) => WHITE_SPACE[letter] ?? `⟨${letter.codePointAt(0)!.toString(16).toUpperCase()}⟩`);

/** A word that does not affect the text direction of the sentence around it. */
export const isolateDirection = (word: string): string => `\u2068${word}\u2069`;

/** A text without accents and in lower case, for searching. */
export const fold = (text: string): string => text.normalize("NFKD").toLowerCase().replace(/\p{M}/gu, "").replace(/ı/gu, "i");

/** Visible words with numbers for repeated words: I¹, am, I². */
export function numberWords(words: readonly string[]): string[] {
  const visibleWords = words.map(makeVisible);
  const [totals, counts] = [new Map<string, number>(), new Map<string, number>()];
  for (const word of visibleWords) totals.set(word, (totals.get(word) ?? 0) + 1);
  return visibleWords.map((word) => {
    if (totals.get(word) === 1) return word;
    const count = (counts.get(word) ?? 0) + 1;
    counts.set(word, count);
    return word + String(count).replace(/\d/g, (digit) => "⁰¹²³⁴⁵⁶⁷⁸⁹"[Number(digit)]!);
  });
}
