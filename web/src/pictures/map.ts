/** Heat map of all weights: a row for each target word, a column for each source word. */
import { isolated, isRightToLeft, numbered, s, shortened, widthOf } from "../page/dom";
import { percent, t } from "../page/strings";
import { ceiling, isNowhere, NOWHERE, type Aligned, type Listeners, type Picture, type Spot } from "./aligned";

const SIZE = 13;
const STRONG = 640; // font weight of highlighted labels
const LABEL = 120; // widest label, in pixels
const LARGEST = 44; // pixels of a cell's side
const NUMBERED = 32; // smallest side of a cell that has its number written in it
const [WIDE, TALL] = [1.5, 8]; // smallest sides of a cell: beyond these the map scrolls
const [BESIDE, BELOW] = [SIZE + 6, SIZE + 2]; // pixels from one label to the next; where cells are smaller, not all have one
const SHARE = 0.6; // of the window's height that the cells may need
const LAST = 5; // labels
export const OVER = 0.57; // weights above it have their numbers in the darker colour
const SCALE = [0, 0.25, 0.5, 0.75, 1]; // shares of the strongest colour
const SAID = 5; // most words in the read-out of one word
const LEAST = 0.005; // smallest weight in that read-out

/** @param room available width, in pixels; very long sentences take more and scroll */
export function map(given: Aligned, room: number, listeners: Listeners): Picture {
  const { weights, changed, languages } = given;
  const [source, target] = [given.source, given.target].map((words) => numbered(words).map((each) => shortened(each, LABEL, SIZE)));
  const left = Math.max(...target!.map((each) => widthOf(each, SIZE, STRONG)), 20) + 14;
  const widths = source!.map((each) => widthOf(each, SIZE));
  const longest = Math.max(...widths, 10);
  const mirrored = isRightToLeft(source!.join(" "));
  // Slanted labels reach beyond the last column.
  const slanted = Math.max(8, Math.max(...(mirrored ? widths.slice(0, LAST) : widths.slice(-LAST))) * 0.71 - 10);
  const fits = (space: number, count: number, least: number): number => Math.max(least, Math.min(LARGEST, space / Math.max(1, count)));
  const [most, high] = [fits(room - left - slanted, source!.length, WIDE), fits(SHARE * innerHeight, target!.length, TALL)];
  const square = Math.min(most, high);
  const [wide, tall] = square >= 22 ? [square, square] : [most, Math.min(high, 28)];
  const upright = longest <= wide - 4;
  const column = (j: number): number => left + (mirrored ? source!.length - 1 - j : j) * wide;
  const top = upright ? SIZE + 14 : longest * 0.71 + 22;
  const width = Math.max(left + wide * source!.length + (upright ? 4 : slanted), left + 190);
  const foot = top + tall * target!.length + 14;
  const height = foot + 30;
  const gap = Math.min(1, wide / 10);
  const full = ceiling(weights);
  const corner = Math.min(3, wide / 6);
  const cells = weights.map((row, i) =>
    [...row].map((weight, j) =>
      s("rect", {
        x: column(j) + gap, y: top + i * tall + 1, width: wide - 2 * gap, height: tall - 2, rx: corner, class: "cell",
        "fill-opacity": (weight / full).toFixed(3), "data-at": `${i} ${j}`,
      })));
  const numbers = square < NUMBERED ? [] : weights.flatMap((row, i) => [...row].flatMap((weight, j) => (weight < LEAST ? [] : [
    s("text", { x: column(j) + wide / 2, y: top + (i + 0.5) * tall, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 12, class: weight / full > OVER ? "number over" : "number" },
      String(Math.round(100 * weight)))])));
  const ring = s("rect", { width: Math.max(4, wide - 1), height: tall - 1, rx: Math.min(4, wide / 4), class: "ring", visibility: "hidden" });
  const band = s("rect", { x: 1, width: width - 2, height: tall, rx: 5, class: "band", visibility: "hidden" });
  const rows = target!.map((word, i) =>
    s("text", { x: left - 8, y: top + (i + 0.5) * tall, "text-anchor": "end", "dominant-baseline": "central", "font-size": SIZE, class: changed.has(i) ? "label changed" : "label", lang: languages?.[1] }, word));
  const columns = source!.map((word, j) => {
    const x = column(j) + 0.5 * wide;
    return upright
      ? s("text", { x, y: top - 8, "text-anchor": "middle", "font-size": SIZE, class: "label", lang: languages?.[0] }, word)
      : s("text", { x, y: top - 8, transform: `rotate(-45 ${x} ${top - 8})`, "font-size": SIZE, class: "label", lang: languages?.[0] }, word);
  });
  const drawn = s(
    "svg",
    {
      viewBox: `0 0 ${Math.ceil(width)} ${Math.ceil(height)}`, width: Math.ceil(width), height: Math.ceil(height),
      class: "map", tabindex: 0, role: "application", "aria-label": `${t("map")}. ${t("map-help")}`,
    },
    band,
    s("g", { class: "grid" }, ...cells.flat().map((each) => {
      const back = each.cloneNode() as SVGRectElement;
      back.setAttribute("class", "empty");
      back.setAttribute("fill-opacity", "1");
      return back;
    })),
    s("g", { class: "cells" }, ...cells.flat(), ...numbers),
    s("g", { class: "key" }, ...SCALE.flatMap((share, k) => [false, true].map((full) =>
      s("rect", { x: left + k * 34, y: foot, width: 34, height: 9, class: full ? "shade" : "ground", "fill-opacity": full ? share : 1 }))),
      ...SCALE.map((share, k) => s("text", { x: left + (k + 0.5) * 34, y: foot + 23, "text-anchor": "middle", "font-size": 12, class: "label" }, percent(share * full)))),
    ...rows, ...columns, ring,
  );

  let at: { i: number; j: number } | null = null;
  const spotOf = (event: Event): Spot => {
    const own = (event.target as Element).getAttribute("data-at")?.split(" ").map(Number);
    return own ? { target: own[0]!, source: own[1]! } : NOWHERE;
  };
  drawn.addEventListener("pointermove", (event) => listeners.look(spotOf(event)));
  drawn.addEventListener("pointerleave", () => listeners.look(NOWHERE));
  drawn.addEventListener("click", (event) => {
    const spot = spotOf(event);
    if (spot.target !== null) listeners.open(spot);
  });
  drawn.addEventListener("focus", () => {
    at ??= { i: 0, j: 0 };
    listeners.look({ target: at.i, source: at.j });
  });
  drawn.addEventListener("blur", () => listeners.look(NOWHERE));
  drawn.addEventListener("keydown", (event) => {
    const [down, right] = { ArrowDown: [1, 0], ArrowUp: [-1, 0], ArrowRight: [0, mirrored ? -1 : 1], ArrowLeft: [0, mirrored ? 1 : -1] }[event.key] ?? [0, 0];
    at ??= { i: 0, j: 0 };
    if (event.key === "Enter" || event.key === " ") listeners.open({ target: at.i, source: at.j });
    else if (down || right) {
      at = {
        i: Math.min(Math.max(at.i + down!, 0), target!.length - 1),
        j: Math.min(Math.max(at.j + right!, 0), source!.length - 1),
      };
      listeners.look({ target: at.i, source: at.j });
    } else return;
    event.preventDefault();
  });

  /** Shows the labels for which there is room, and the highlighted one in place of its neighbours. */
  function name(labels: readonly SVGElement[], stressed: number | null, cells: number): void {
    const pace = Math.ceil(cells);
    labels.forEach((element, k) => {
      const near = stressed !== null && k !== stressed && Math.abs(k - stressed) < pace;
      element.classList.toggle("strong", k === stressed);
      element.setAttribute("visibility", k === stressed || (k % pace === 0 && !near) ? "visible" : "hidden");
    });
  }

  function stress(spot: Spot, opened: number | null): void {
    const both = spot.target !== null && spot.source !== null;
    ring.setAttribute("visibility", both ? "visible" : "hidden");
    if (both) {
      at = { i: spot.target!, j: spot.source! };
      ring.setAttribute("x", String(column(spot.source!) + 0.5));
      ring.setAttribute("y", String(top + spot.target! * tall + 0.5));
    }
    const row = spot.target ?? opened;
    const there = row !== null && row < target!.length;
    band.setAttribute("visibility", there ? "visible" : "hidden");
    if (there) band.setAttribute("y", String(top + row * tall));
    name(rows, row, BELOW / tall);
    name(columns, spot.source, BESIDE / wide);
  }

  stress(NOWHERE, null);
  return { element: drawn, stress };
}

/** Read-out of a spot: the weight of a pair, or the largest weights of a word. */
export function spotText(given: Aligned, spot: Spot): string {
  if (isNowhere(spot)) return "";
  const { weights } = given;
  const [source, target] = [numbered(given.source), numbered(given.target)];
  const word = (words: readonly string[], k: number): string => isolated(words[k] ?? "");
  if (spot.target !== null && spot.source !== null) {
    return t("looked", word(target, spot.target), word(source, spot.source), percent(weights[spot.target]?.[spot.source] ?? 0, 1));
  }
  const written = spot.target !== null;
  const [own, others, k] = written ? [target, source, spot.target!] : [source, target, spot.source!];
  const beside = others.map((_, at) => [(written ? weights[k]?.[at] : weights[at]?.[k]) ?? 0, at] as const)
    .filter(([weight]) => weight >= LEAST).sort(([one], [other]) => other - one).slice(0, SAID)
    .map(([weight, at]) => `${word(others, at)} ${percent(weight, 1)}`);
  return t(written ? "looked-most" : "looked-by", word(own, k), beside.join(", ") || "—");
}
