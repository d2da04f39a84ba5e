/** Heat map of all weights: a row for each target word, a column for each source word. */
import { isRightToLeft, numbered, s, shortened, visible, widthOf } from "../page/dom";
import { percent, t } from "../page/strings";
import { isNowhere, NOWHERE, type Aligned, type Listeners, type Picture, type Spot } from "./aligned";

const SIZE = 13;
const STRONG = 640; // font weight of highlighted labels
const LABEL = 120; // widest label, in pixels
const SAID = 5; // most words in the read-out of one word
const LEAST = 0.005; // smallest weight in that read-out

/** @param room preferred width, in pixels; long sentences take more and scroll */
export function map(given: Aligned, room: number, listeners: Listeners): Picture {
  const { weights, changed, languages } = given;
  const [source, target] = [given.source, given.target].map((words) => words.map((each) => shortened(visible(each), LABEL, SIZE)));
  const left = Math.max(...target!.map((each) => widthOf(each, SIZE, STRONG)), 20) + 14;
  const longest = Math.max(...source!.map((each) => widthOf(each, SIZE)), 10);
  const cell = Math.max(22, Math.min(44, (room - left - 8) / Math.max(1, source!.length)));
  const upright = longest <= cell - 4;
  const mirrored = isRightToLeft(source!.join(" "));
  const column = (j: number): number => left + (mirrored ? source!.length - 1 - j : j) * cell;
  const top = upright ? SIZE + 14 : longest * 0.71 + 22;
  // A slanted label reaches beyond the last column.
  const width = left + cell * source!.length + (upright ? 4 : Math.max(8, widthOf(source!.at(mirrored ? 0 : -1) ?? "", SIZE) * 0.71 - cell / 2 + 12));
  const height = top + cell * target!.length + 4;
  const cells = weights.map((row, i) =>
    [...row].map((weight, j) =>
      s("rect", {
        x: column(j) + 1, y: top + i * cell + 1, width: cell - 2, height: cell - 2, rx: 3, class: "cell",
        "fill-opacity": weight.toFixed(3), "data-at": `${i} ${j}`,
      })));
  const ring = s("rect", { width: cell - 1, height: cell - 1, rx: 4, class: "ring", visibility: "hidden" });
  const band = s("rect", { x: 1, width: width - 2, height: cell, rx: 5, class: "band", visibility: "hidden" });
  const rows = target!.map((word, i) =>
    s("text", { x: left - 8, y: top + (i + 0.5) * cell, "text-anchor": "end", "dominant-baseline": "central", "font-size": SIZE, class: changed.has(i) ? "label changed" : "label", lang: languages?.[1] }, word));
  const columns = source!.map((word, j) => {
    const x = column(j) + 0.5 * cell;
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
    s("g", { class: "cells" }, ...cells.flat()),
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

  function stress(spot: Spot, opened: number | null): void {
    const both = spot.target !== null && spot.source !== null;
    ring.setAttribute("visibility", both ? "visible" : "hidden");
    if (both) {
      at = { i: spot.target!, j: spot.source! };
      ring.setAttribute("x", String(column(spot.source!) + 0.5));
      ring.setAttribute("y", String(top + spot.target! * cell + 0.5));
    }
    const row = spot.target ?? opened;
    const there = row !== null && row < target!.length;
    band.setAttribute("visibility", there ? "visible" : "hidden");
    if (there) band.setAttribute("y", String(top + row * cell));
    rows.forEach((element, i) => element.classList.toggle("strong", i === row));
    columns.forEach((element, j) => element.classList.toggle("strong", j === spot.source));
  }

  return { element: drawn, stress };
}

/** Read-out of a spot: the weight of a pair, or the largest weights of a word. */
export function said(given: Aligned, spot: Spot): string {
  if (isNowhere(spot)) return "";
  const { weights } = given;
  const [source, target] = [numbered(given.source), numbered(given.target)];
  const word = (words: readonly string[], k: number): string => words[k] ?? "";
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
