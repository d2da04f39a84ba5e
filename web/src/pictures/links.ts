/** A picture of source words above target words, with a curve for each weight. */
import { isRightToLeft, s, shorten, makeVisible, widthOf } from "../page/dom";
import { percent, t } from "../page/strings";
import { argmax, ceiling, isNowhere, NOWHERE, type Alignment, type Listeners, type Picture, type Spot } from "./alignment";

/** Sizes in pixels: font, height of a box, gap between boxes, padding of a box, distance between the texts. */
const SIZES = [[16, 34, 10, 10, 104], [14, 28, 7, 7, 80], [12, 24, 3, 4, 64]] as const;
const MAX_HEIGHT = 0.5; // share of the window's height; taller pictures use the next smaller size
const MIN_WEIGHT = 0.04; // smaller weights have a curve only while their word is highlighted
const MAX_LINES = 4; // pictures with more lines of words have curves only while a word is highlighted

interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly text: string;
}

/** @param width available pixels */
export function drawLinks(alignment: Alignment, width: number, listeners: Listeners): Picture {
  const { source, target, weights, changedWords, languages } = alignment;
  const texts = [source.map(makeVisible), target.map(makeVisible)] as const;
  const layouts = SIZES.map((size) => ({ size, blocks: texts.map((words) => wrapWords(words, size, width)) }));
  const heightOf = ({ size, blocks }: (typeof layouts)[number]): number => blocks[0]!.height + size[4] + blocks[1]!.height;
  const layout = layouts.find((candidate) => heightOf(candidate) <= MAX_HEIGHT * innerHeight) ?? layouts.at(-1)!;
  const [fontSize, boxHeight, , , textDistance] = layout.size;
  const height = heightOf(layout);
  const lowerTop = layout.blocks[0]!.height + textDistance;
  const sourceBoxes = layout.blocks[0]!.boxes;
  const targetBoxes = layout.blocks[1]!.boxes.map((box) => ({ ...box, y: box.y + lowerTop }));
  const lineCount = layout.blocks[0]!.lines + layout.blocks[1]!.lines;

  const strongest = ceiling(weights);
  const lines = weights.flatMap((row, i) =>
    [...row].map((weight, j) => {
      const [sourceBox, targetBox] = [sourceBoxes[j]!, targetBoxes[i]!];
      const path = linkPath(sourceBox.x + sourceBox.width / 2, sourceBox.y + boxHeight, targetBox.x + targetBox.width / 2, targetBox.y);
      return { i, j, weight, element: s("path", { d: path, class: "link", "stroke-width": (0.75 + (5 * weight) / strongest).toFixed(2) }) };
    }));
  const words = [sourceBoxes, targetBoxes].map((boxes, side) => boxes.map((box, k) => createWord(box, side === 1, k)));
  const drawing = s(
    "svg",
    { viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`, width: Math.ceil(width), height: Math.ceil(height), class: "links", role: "group", "aria-label": t("links") },
    s("g", { class: "lines" }, ...lines.map((line) => line.element)),
    s("g", { class: "backs" }, ...[...sourceBoxes, ...targetBoxes].map((box) => s("rect", rectangleOf(box)))),
    ...words.flat(),
  );

  function rectangleOf({ x, y, width }: Box): Record<string, number> {
    return { x, y, width, height: boxHeight, rx: boxHeight / 4 };
  }

  function createWord(box: Box, isTarget: boolean, k: number): SVGGElement {
    const spot: Spot = isTarget ? { target: k, source: null } : { target: null, source: k };
    const shortText = shorten(box.text, box.width - 6, fontSize);
    const bestSource = isTarget ? argmax(weights[k]!) : 0;
    const label = isTarget
      ? t("token-label", box.text, texts[0][bestSource] ?? "", percent(weights[k]![bestSource] ?? 0))
      : t("source-label", box.text);
    return s(
      "g",
      {
        class: `word ${isTarget ? "written" : "read"}${isTarget && changedWords.has(k) ? " changed" : ""}`,
        role: "button", tabindex: isTarget && k === 0 ? 0 : -1, "aria-label": label,
        pointerenter: () => listeners.hover(spot),
        focus: () => listeners.hover(spot),
        click: () => listeners.open(spot),
        keydown: (event: KeyboardEvent) => handleKey(event, isTarget, k),
      },
      s("rect", rectangleOf(box)),
      s(
        "text",
        { x: box.x + box.width / 2, y: box.y + boxHeight / 2, "text-anchor": "middle", "dominant-baseline": "central", "font-size": fontSize, lang: languages?.[isTarget ? 1 : 0] },
        shortText,
      ),
      shortText === box.text ? null : s("title", {}, box.text),
    );
  }

  function handleKey(event: KeyboardEvent, isTarget: boolean, k: number): void {
    const side = words[isTarget ? 1 : 0]!;
    const mirrored = isRightToLeft(texts[isTarget ? 1 : 0].join(" "));
    const step = { ArrowRight: mirrored ? -1 : 1, ArrowLeft: mirrored ? 1 : -1 }[event.key];
    const neighbour = event.key === "Home" ? 0 : event.key === "End" ? side.length - 1 : step === undefined ? null : k + step;
    if (event.key === "Enter" || event.key === " ") {
      listeners.open(isTarget ? { target: k, source: null } : { target: null, source: k });
    } else if (event.key === (isTarget ? "ArrowUp" : "ArrowDown")) {
      const row = isTarget ? weights[k]! : weights.map((row) => row[k]!);
      focusWord(words[isTarget ? 0 : 1]![argmax(row)]);
    } else if (neighbour !== null && side[neighbour]) focusWord(side[neighbour]);
    else return;
    event.preventDefault();
  }

  function focusWord(element: SVGGElement | undefined): void {
    if (!element) return;
    for (const word of words.flat()) word.setAttribute("tabindex", "-1");
    element.setAttribute("tabindex", "0");
    element.focus();
  }

  drawing.addEventListener("pointerleave", () => listeners.hover(NOWHERE));

  function highlight(spot: Spot, openedWord: number | null): void {
    const isIdle = isNowhere(spot);
    const target = spot.target ?? (isIdle ? openedWord : null);
    // If curves would cross lines of words, only the highlighted word has curves.
    const drawsFaint = lineCount <= 2 || (lineCount <= MAX_LINES && isIdle && openedWord === null);
    for (const { i, j, weight, element } of lines) {
      const isHighlighted = (target === null || i === target) && (spot.source === null || j === spot.source);
      const isStrong = isHighlighted && weight >= 0.005 && !(isIdle && openedWord === null);
      element.setAttribute("visibility", isStrong || (weight >= MIN_WEIGHT && drawsFaint) ? "visible" : "hidden");
      element.setAttribute("stroke-opacity", (isStrong || isIdle ? 0.12 + (0.88 * weight) / strongest : 0.07).toFixed(3));
      element.classList.toggle("strong", isStrong);
    }
    const heatOf = (side: number, k: number): number => {
      if (side === 0) return target === null ? 0 : (weights[target]?.[k] ?? 0) / strongest;
      return spot.source === null ? 0 : (weights[k]?.[spot.source] ?? 0) / strongest;
    };
    words.forEach((side, sideIndex) => side.forEach((element, k) => {
      const isActive = sideIndex === 1 ? k === target : k === spot.source;
      element.classList.toggle("here", isActive);
      element.classList.toggle("opened", sideIndex === 1 && k === openedWord);
      element.querySelector("rect")!.setAttribute("fill-opacity", isActive ? "1" : heatOf(sideIndex, k).toFixed(3));
      if (sideIndex === 1) element.setAttribute("aria-pressed", String(k === openedWord));
    }));
  }

  highlight(NOWHERE, null);
  return { element: drawing, highlight };
}

const linkPath = (x: number, top: number, bottomX: number, bottom: number): string => {
  const middle = (top + bottom) / 2;
  return `M${x.toFixed(1)},${top}C${x.toFixed(1)},${middle} ${bottomX.toFixed(1)},${middle} ${bottomX.toFixed(1)},${bottom}`;
};

/** Boxes of words, wrapped into lines. Right-to-left scripts start at the right. A single line is centred. */
function wrapWords(words: readonly string[], [fontSize, boxHeight, gap, padding]: (typeof SIZES)[number], maxWidth: number): { boxes: Box[]; lines: number; height: number } {
  const mirrored = isRightToLeft(words.join(" "));
  const boxes: Box[] = [];
  let [x, lines] = [0, 1];
  for (const text of words) {
    const width = Math.min(maxWidth, widthOf(text, fontSize) + 2 * padding);
    if (x && x + width > maxWidth) [x, lines] = [0, lines + 1];
    boxes.push({ x: mirrored ? maxWidth - x - width : x, y: (lines - 1) * (boxHeight + gap), width, text });
    x += width + gap;
  }
  const shift = lines > 1 ? 0 : ((mirrored ? -1 : 1) * (maxWidth - x + gap)) / 2;
  return { boxes: boxes.map((box) => ({ ...box, x: box.x + shift })), lines, height: lines * (boxHeight + gap) - gap };
}
