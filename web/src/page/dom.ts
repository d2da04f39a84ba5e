/** Helpers for elements and text: creation, measured widths, characters that can be shown. */
import { TAG } from "../decoder/markup";

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

/** Creates an HTML element; attributes that are functions become listeners. */
export function h<K extends keyof HTMLElementTagNameMap>(
  name: K, attributes: Attributes = {}, ...children: Child[]
): HTMLElementTagNameMap[K] {
  return filled(document.createElement(name), attributes, children);
}

/** Creates an SVG element; attributes that are functions become listeners. */
export function s<K extends keyof SVGElementTagNameMap>(
  name: K, attributes: Attributes = {}, ...children: Child[]
): SVGElementTagNameMap[K] {
  return filled(document.createElementNS(SVG, name), attributes, children);
}

const NEAR = "800px 0px"; // around the window

/** Acts once, when an element comes near the window. */
export function whenNear(element: Element, act: () => void): void {
  const near = new IntersectionObserver((entries) => {
    if (!entries.some(({ isIntersecting }) => isIntersecting)) return;
    near.disconnect();
    act();
  }, { rootMargin: NEAR });
  near.observe(element);
}

/** Draws the cards that come near the window, and those near it again when their room has another width. Returns the cards near it. */
export function drawNear<Card extends { readonly element: Element }>(room: HTMLElement, cards: readonly Card[], draw: (card: Card) => void): ReadonlySet<Card> {
  const [near, byElement] = [new Set<Card>(), new Map<Element, Card>(cards.map((card) => [card.element, card]))];
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      const card = byElement.get(target)!;
      if (!isIntersecting) near.delete(card);
      else if (!near.has(card)) draw((near.add(card), card));
    }
  }, { rootMargin: NEAR });
  let width = 0;
  new ResizeObserver(() => {
    if (!room.clientWidth || room.clientWidth === width) return;
    if (width) for (const card of near) draw(card);
    else for (const { element } of cards) observer.observe(element);
    width = room.clientWidth;
  }).observe(room);
  return near;
}

/** A button that opens a list of others; it closes after one of them, with Escape, or when the focus leaves. */
export function menu(label: string, ...items: HTMLElement[]): HTMLElement {
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
  for (const each of items) {
    each.addEventListener("click", () => {
      close();
      element.querySelector("summary")!.focus();
    });
  }
  return element;
}

/** What a reference in HTML stands for; as in Python nothing where its number is of a control character. */
export function unescaped(reference: string): string {
  const { body } = new DOMParser().parseFromString(`<p>${reference}`, "text/html"); // in <p> also white space stays
  return body.textContent.replace(/[\x01-\x08\x0b\x0e-\x1f\x7f\p{Noncharacter_Code_Point}]/gu, "");
}

/** HTML as text, with its tags set apart; <bdi>, so that they do not say in which direction the text runs. */
export function tagged(html: string): (HTMLElement | string)[] {
  const parts: (HTMLElement | string)[] = [];
  let at = 0;
  for (const { 0: tag, index } of html.matchAll(TAG)) {
    parts.push(html.slice(at, index), h("bdi", { class: "tag" }, tag));
    at = index + tag.length;
  }
  return [...parts, html.slice(at)];
}

const TAGS_AND_WORDS = new RegExp(`${TAG.source}|[^<\\s]+\\s*|\\s+`, TAG.flags);

/** The words of a text, those in <mark> that another text has not between the same beginning and end. */
export function marked(text: string, other: string, html = false): (HTMLElement | string)[] {
  const words = html ? TAGS_AND_WORDS : /\S+\s*/gu;
  const shown = html ? tagged : (part: string): string[] => [part];
  const [now, then] = [text, other].map((each) => each.match(words) ?? []) as string[][];
  const shorter = Math.min(now.length, then.length);
  let [start, end] = [0, 0];
  while (start < shorter && now[start]!.trim() === then[start]!.trim()) start++;
  while (end < shorter - start && now.at(-1 - end)!.trim() === then.at(-1 - end)!.trim()) end++;
  const parts = [now.slice(0, start), now.slice(start, now.length - end), now.slice(now.length - end)].map((each) => each.join(""));
  const [, changed, space] = /^([^]*?)(\s*)$/u.exec(parts[1]!)!;
  return [...shown(parts[0]!), changed ? h("mark", {}, ...shown(changed)) : "", ...shown(space! + parts[2]!)];
}

/** The focused element of the document, or shadow root, that an element is in. */
export const activeIn = (element: Element): Element | null => (element.getRootNode() as Document | ShadowRoot).activeElement ?? null;

/** The first opaque background colour of an element and its ancestors. */
export function backgroundOf(element: Element): string {
  for (let each: Element | null = element; each; each = each.parentElement ?? (each.getRootNode() as ShadowRoot).host ?? null) {
    const colour = getComputedStyle(each).backgroundColor;
    if (!/^transparent$|, 0\)$/.test(colour)) return colour;
  }
  return "rgb(255, 255, 255)";
}

let family = "sans-serif";
let writer: Element | null = null;

/** Sets whose font texts are measured in; it is read once the element is in a page. */
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
const SHOWN = 200; // most letters shown of a word; measuring thousands takes seconds

function measured(text: string, size: number, weight = 400): number {
  canvas ??= document.createElement("canvas").getContext("2d");
  if (!canvas) return text.length * size * 0.6;
  canvas.font = `${weight} ${size}px ${fonts()}`;
  return canvas.measureText(text).width;
}

/** Width in CSS pixels of the first `SHOWN` letters of a text. */
export const widthOf = (text: string, size: number, weight = 400): number => measured(text.slice(0, SHOWN), size, weight);

/** A text cut to `most` pixels, ending in … if cut; at least one letter stays. */
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

/** True if the first letter is of a script written from right to left. */
export const isRightToLeft = (text: string): boolean =>
  /^[^\p{L}]*[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}]/u.test(text);

const WHITE_SPACE: Record<string, string> = { "\n": "⏎", "\t": "⇥" };

/** A text with signs for white space that is all of it, for line breaks and tabs, and codes for other characters that cannot be seen: ⟨200B⟩. */
export const visible = (text: string): string =>
  text.replace(/^\p{Zs}*$/u, (spaces) => "␣".repeat(spaces.length))
    .replace(/[\p{Cc}\p{Cf}\p{Zl}\p{Zp}]/gu, (letter) => WHITE_SPACE[letter] ?? `⟨${letter.codePointAt(0)!.toString(16).toUpperCase()}⟩`);

/** A word for a sentence: its direction does not change the order of what is around it. */
export const isolated = (word: string): string => `\u2068${word}\u2069`;

/** Text without accents, in lower case, for searching. */
export const fold = (text: string): string => text.normalize("NFKD").toLowerCase().replace(/\p{M}/gu, "").replace(/ı/gu, "i");

/** Visible words, equal ones numbered: I¹, am, I². */
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
