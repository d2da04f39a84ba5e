/** A heat map of all weights, with a row for each target word and a column for each source word. */
import { isolateDirection, isRightToLeft, numberWords, s, shorten, widthOf } from "../page/dom";
import { percent, t } from "../page/strings";
import { ceiling, isNowhere, NOWHERE, type Alignment, type Listeners, type Picture, type Spot } from "./alignment";

const SIZE = 13;
const STRONG = 640; // font weight of highlighted labels
const MAX_LABEL_WIDTH = 120; // pixels
const MAX_CELL_SIDE = 44; // pixels
const MIN_NUMBERED_CELL = 32; // pixels; larger cells show their numbers
const [MIN_CELL_WIDTH, MIN_CELL_HEIGHT] = [1.5, 8]; // pixels; a map with more cells scrolls
const [COLUMN_LABEL, ROW_LABEL] = [SIZE + 6, SIZE + 2]; // pixels per label; not all smaller cells have one
const MAX_HEIGHT = 0.6; // share of the window's height for all cells
const SLANTED_LABELS = 5; // labels that may extend beyond the last column
export const OVER = 0.57; // larger weights have dark numbers
const SCALE = [0, 0.25, 0.5, 0.75, 1]; // shares of the strongest colour in the legend
const MAX_LISTED = 5; // words in the readout
const MIN_LISTED = 0.005; // smallest weight with a number

/** @param availableWidth in pixels; the map of a very long sentence is wider and scrolls */
export function drawHeatmap(alignment: Alignment, availableWidth: number, listeners: Listeners): Picture {
  const { weights, changedWords, languages } = alignment;
  const [source, target] = [alignment.source, alignment.target].map((words) => numberWords(words).map((word) => shorten(word, MAX_LABEL_WIDTH, SIZE)));
  const left = Math.max(...target!.map((word) => widthOf(word, SIZE, STRONG)), 20) + 14;
  const widths = source!.map((word) => widthOf(word, SIZE));
  const longest = Math.max(...widths, 10);
  const isMirrored = isRightToLeft(source!.join(" "));
  // Slanted labels extend beyond the last column.
  const slantedWidth = Math.max(8, Math.max(...(isMirrored ? widths.slice(0, SLANTED_LABELS) : widths.slice(-SLANTED_LABELS))) * 0.71 - 10);
  const fitCell = (space: number, count: number, minimum: number): number => Math.max(minimum, Math.min(MAX_CELL_SIDE, space / Math.max(1, count)));
  const [widest, tallest] = [fitCell(availableWidth - left - slantedWidth, source!.length, MIN_CELL_WIDTH), fitCell(MAX_HEIGHT * innerHeight, target!.length, MIN_CELL_HEIGHT)];
  const cellSide = Math.min(widest, tallest);
  const [cellWidth, cellHeight] = cellSide >= 22 ? [cellSide, cellSide] : [widest, Math.min(tallest, 28)];
  const hasUprightLabels = longest <= cellWidth - 4;
  const columnX = (j: number): number => left + (isMirrored ? source!.length - 1 - j : j) * cellWidth;
  const top = hasUprightLabels ? SIZE + 14 : longest * 0.71 + 22;
  const width = Math.max(left + cellWidth * source!.length + (hasUprightLabels ? 4 : slantedWidth), left + 190);
  const legendTop = top + cellHeight * target!.length + 14;
  const height = legendTop + 30;
  const gap = Math.min(1, cellWidth / 10);
  const strongest = ceiling(weights);
  const corner = Math.min(3, cellWidth / 6);
  const cells = weights.map((row, i) =>
    [...row].map((weight, j) =>
      s("rect", {
        x: columnX(j) + gap, y: top + i * cellHeight + 1, width: cellWidth - 2 * gap, height: cellHeight - 2, rx: corner, class: "cell",
        "fill-opacity": (weight / strongest).toFixed(3), "data-at": `${i} ${j}`,
      })));
  const numbers = cellSide < MIN_NUMBERED_CELL ? [] : weights.flatMap((row, i) => [...row].flatMap((weight, j) => (weight < MIN_LISTED ? [] : [
    s("text", { x: columnX(j) + cellWidth / 2, y: top + (i + 0.5) * cellHeight, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 12, class: weight / strongest > OVER ? "number over" : "number" },
      String(Math.round(100 * weight)))])));
  const ring = s("rect", { width: Math.max(4, cellWidth - 1), height: cellHeight - 1, rx: Math.min(4, cellWidth / 4), class: "ring", visibility: "hidden" });
  const band = s("rect", { x: 1, width: width - 2, height: cellHeight, rx: 5, class: "band", visibility: "hidden" });
  const rows = target!.map((word, i) =>
    s("text", { x: left - 8, y: top + (i + 0.5) * cellHeight, "text-anchor": "end", "dominant-baseline": "central", "font-size": SIZE, class: changedWords.has(i) ? "label changed" : "label", lang: languages?.[1] }, word));
  const columns = source!.map((word, j) => {
    const x = columnX(j) + 0.5 * cellWidth;
    return hasUprightLabels
      ? s("text", { x, y: top - 8, "text-anchor": "middle", "font-size": SIZE, class: "label", lang: languages?.[0] }, word)
      : s("text", { x, y: top - 8, transform: `rotate(-45 ${x} ${top - 8})`, "font-size": SIZE, class: "label", lang: languages?.[0] }, word);
  });
  const drawing = s(
    "svg",
    {
      viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`, width: Math.ceil(width), height: Math.ceil(height),
      class: "map", tabindex: 0, role: "application", "aria-label": `${t("map")}. ${t("map-help")}`,
    },
    band,
    s("g", { class: "grid" }, ...cells.flat().map((cell) => {
      const background = cell.cloneNode() as SVGRectElement;
      background.setAttribute("class", "empty");
      background.setAttribute("fill-opacity", "1");
      return background;
    })),
    s("g", { class: "cells" }, ...cells.flat(), ...numbers),
    s("g", { class: "key" }, ...SCALE.flatMap((share, k) => [false, true].map((isShade) =>
      s("rect", { x: left + k * 34, y: legendTop, width: 34, height: 9, class: isShade ? "shade" : "ground", "fill-opacity": isShade ? share : 1 }))),
      ...SCALE.map((share, k) => s("text", { x: left + (k + 0.5) * 34, y: legendTop + 23, "text-anchor": "middle", "font-size": 12, class: "label" }, percent(share * strongest)))),
    ...rows, ...columns, ring,
  );

  let activeCell: { i: number; j: number } | null = null;
  const spotOf = (event: Event): Spot => {
    const indices = (event.target as Element).getAttribute("data-at")?.split(" ").map(Number);
    return indices ? { target: indices[0]!, source: indices[1]! } : NOWHERE;
  };
  drawing.addEventListener("pointermove", (event) => listeners.hover(spotOf(event)));
  drawing.addEventListener("pointerleave", () => listeners.hover(NOWHERE));
  drawing.addEventListener("click", (event) => {
    const spot = spotOf(event);
    if (spot.target !== null) listeners.open(spot);
  });
  drawing.addEventListener("focus", () => {
    activeCell ??= { i: 0, j: 0 };
    listeners.hover({ target: activeCell.i, source: activeCell.j });
  });
  drawing.addEventListener("blur", () => listeners.hover(NOWHERE));
  drawing.addEventListener("keydown", (event) => {
    const [rowStep, columnStep] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, isMirrored ? -1 : 1], ArrowLeft: [0, isMirrored ? 1 : -1] }[event.key] ?? [0, 0];
    activeCell ??= { i: 0, j: 0 };
    if (event.key === "Enter" || event.key === " ") listeners.open({ target: activeCell.i, source: activeCell.j });
    else if (rowStep || columnStep) {
      activeCell = {
        i: Math.min(Math.max(activeCell.i + rowStep!, 0), target!.length - 1),
        j: Math.min(Math.max(activeCell.j + columnStep!, 0), source!.length - 1),
      };
      listeners.hover({ target: activeCell.i, source: activeCell.j });
    } else return;
    event.preventDefault();
  });

  /** Shows labels at intervals that avoid overlaps, and the highlighted label instead of its neighbours. */
  function showLabels(labels: readonly SVGElement[], highlighted: number | null, labelCells: number): void {
    const interval = Math.ceil(labelCells);
    labels.forEach((element, k) => {
      const isNeighbour = highlighted !== null && k !== highlighted && Math.abs(k - highlighted) < interval;
      element.classList.toggle("strong", k === highlighted);
      element.setAttribute("visibility", k === highlighted || (k % interval === 0 && !isNeighbour) ? "visible" : "hidden");
    });
  }

  function highlight(spot: Spot, openedWord: number | null): void {
    const isPair = spot.target !== null && spot.source !== null;
    ring.setAttribute("visibility", isPair ? "visible" : "hidden");
    if (isPair) {
      activeCell = { i: spot.target!, j: spot.source! };
      ring.setAttribute("x", String(columnX(spot.source!) + 0.5));
      ring.setAttribute("y", String(top + spot.target! * cellHeight + 0.5));
    }
    const row = spot.target ?? openedWord;
    const hasRow = row !== null && row < target!.length;
    band.setAttribute("visibility", hasRow ? "visible" : "hidden");
    if (hasRow) band.setAttribute("y", String(top + row * cellHeight));
    showLabels(rows, row, ROW_LABEL / cellHeight);
    showLabels(columns, spot.source, COLUMN_LABEL / cellWidth);
  }

  highlight(NOWHERE, null);
  return { element: drawing, highlight };
}

/** The readout of a spot: the weight of a pair, or the largest weights of a word. */
export function spotText(alignment: Alignment, spot: Spot): string {
  if (isNowhere(spot)) return "";
  const { weights } = alignment;
  const [source, target] = [numberWords(alignment.source), numberWords(alignment.target)];
  const wordAt = (words: readonly string[], k: number): string => isolateDirection(words[k] ?? "");
  if (spot.target !== null && spot.source !== null) {
    return t("attends-to", wordAt(target, spot.target), wordAt(source, spot.source), percent(weights[spot.target]?.[spot.source] ?? 0, 1));
  }
  const isTarget = spot.target !== null;
  const [words, otherWords, k] = isTarget ? [target, source, spot.target!] : [source, target, spot.source!];
  const list = otherWords.map((_, otherIndex) => [(isTarget ? weights[k]?.[otherIndex] : weights[otherIndex]?.[k]) ?? 0, otherIndex] as const)
    .filter(([weight]) => weight >= MIN_LISTED).sort(([a], [b]) => b - a).slice(0, MAX_LISTED)
    .map(([weight, otherIndex]) => `${wordAt(otherWords, otherIndex)} ${percent(weight, 1)}`);
  return t(isTarget ? "attends-most-to" : "attended-by", wordAt(words, k), list.join(", ") || "—");
}
