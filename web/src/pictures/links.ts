/** Source and target words with a line for each weight, in two rows or, if too wide, two columns. */
import { isRightToLeft, s, shortened, visible, widthOf } from "../page/dom";
import { percent, t } from "../page/strings";
import { argmax, type Aligned, type Listeners, type Picture, type Spot } from "./aligned";

const SIZE = 16; // of letters, in pixels
const TALL = 34; // pixels of a word's box
const GAP = 10; // between two words
const FAINTEST = 0.04; // weights below it are drawn only while their word is highlighted

interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly text: string;
}

/** @param most available width, in pixels */
export function links(given: Aligned, most: number, listeners: Listeners): Picture {
  const { source, target, weights, changed, languages } = given;
  const sides = [source.map(visible), target.map(visible)] as const;
  const widths = sides.map((words) => words.map((word) => widthOf(word, SIZE) + 20));
  const total = widths.map((each) => each.reduce((sum, width) => sum + width + GAP, -GAP));
  const inRows = Math.max(...total) <= most;
  const room = inRows ? most : Math.min(most, 640);
  const gap = inRows ? 104 : Math.max(56, Math.min(150, room * 0.26));
  const boxes = inRows
    ? sides.map((words, side) => row(words, widths[side]!, (room - total[side]!) / 2, side ? TALL + gap : 0))
    : sides.map((words, side) => column(words, (room - gap) / 2, side ? (room + gap) / 2 : 0, Math.max(source.length, target.length)));
  const [above, below] = boxes as [Box[], Box[]];
  const height = inRows ? 2 * TALL + gap : Math.max(source.length, target.length) * (TALL + 4);

  const lines = weights.flatMap((row, i) =>
    [...row].map((weight, j) => {
      const path = inRows
        ? between(middle(above[j]!), above[j]!.y + TALL, middle(below[i]!), below[i]!.y)
        : across(above[j]!.x + above[j]!.width, above[j]!.y + TALL / 2, below[i]!.x, below[i]!.y + TALL / 2);
      return {
        i, j, weight,
        element: s("path", { d: path, class: "link", "stroke-width": (0.75 + 5 * weight).toFixed(2) }),
      };
    }));
  const words = [above, below].map((side, which) => side.map((box, k) => word(box, which === 1, k)));
  const drawn = s(
    "svg",
    { viewBox: `0 0 ${Math.ceil(room)} ${Math.ceil(height)}`, width: Math.ceil(room), height: Math.ceil(height), class: "links", role: "group", "aria-label": t("links") },
    s("g", { class: "lines" }, ...lines.map((line) => line.element)),
    ...words.flat(),
  );

  function word(box: Box, written: boolean, k: number): SVGGElement {
    const spot: Spot = written ? { target: k, source: null } : { target: null, source: k };
    const short = shortened(box.text, box.width - 12, SIZE);
    const best = written ? argmax(weights[k]!) : 0;
    const label = written
      ? t("token-label", box.text, sides[0][best] ?? "", percent(weights[k]![best] ?? 0))
      : t("source-label", box.text);
    return s(
      "g",
      {
        class: `word ${written ? "written" : "read"}${written && changed.has(k) ? " changed" : ""}`,
        role: "button", tabindex: written && k === 0 ? 0 : -1, "aria-label": label,
        pointerenter: () => listeners.look(spot),
        focus: () => listeners.look(spot),
        click: () => listeners.open(spot),
        keydown: (event: KeyboardEvent) => keys(event, written, k),
      },
      s("rect", { x: box.x, y: box.y, width: box.width, height: TALL, rx: 9 }),
      s(
        "text",
        { x: box.x + box.width / 2, y: box.y + TALL / 2, "text-anchor": "middle", "dominant-baseline": "central", "font-size": SIZE, lang: languages?.[written ? 1 : 0] },
        short,
      ),
      short === box.text ? null : s("title", {}, box.text),
    );
  }

  function keys(event: KeyboardEvent, written: boolean, k: number): void {
    const side = words[written ? 1 : 0]!;
    const mirrored = inRows && isRightToLeft(sides[written ? 1 : 0].join(" "));
    const step = { ArrowRight: mirrored ? -1 : 1, ArrowDown: 1, ArrowLeft: mirrored ? 1 : -1, ArrowUp: -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? side.length - 1 : step === undefined ? null : k + step;
    const other = inRows
      ? (event.key === "ArrowUp" && written) || (event.key === "ArrowDown" && !written)
      : (event.key === "ArrowLeft" && written) || (event.key === "ArrowRight" && !written);
    if (event.key === "Enter" || event.key === " ") {
      listeners.open(written ? { target: k, source: null } : { target: null, source: k });
    } else if (other) {
      const row = written ? weights[k]! : weights.map((each) => each[k]!);
      focus(words[written ? 0 : 1]![argmax(row)]);
    } else if (to !== null && side[to]) focus(side[to]);
    else return;
    event.preventDefault();
  }

  function focus(to: SVGGElement | undefined): void {
    if (!to) return;
    for (const each of words.flat()) each.setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    to.focus();
  }

  drawn.addEventListener("pointerleave", () => listeners.look({ target: null, source: null }));

  function stress(spot: Spot, opened: number | null): void {
    const resting = spot.target === null && spot.source === null;
    const target = spot.target ?? (resting ? opened : null);
    for (const { i, j, weight, element } of lines) {
      const own = (target === null || i === target) && (spot.source === null || j === spot.source);
      const strong = own && weight >= 0.005 && !(resting && opened === null);
      element.setAttribute("visibility", strong || weight >= FAINTEST ? "visible" : "hidden");
      element.setAttribute("stroke-opacity", (strong || resting ? 0.12 + 0.88 * weight : 0.07).toFixed(3));
      element.classList.toggle("strong", strong);
    }
    const heat = (side: number, k: number): number => {
      if (side === 0) return target === null ? 0 : (weights[target]?.[k] ?? 0);
      return spot.source === null ? 0 : (weights[k]?.[spot.source] ?? 0);
    };
    words.forEach((side, which) => side.forEach((element, k) => {
      const here = which === 1 ? k === target : k === spot.source;
      element.classList.toggle("here", here);
      element.classList.toggle("opened", which === 1 && k === opened);
      element.querySelector("rect")!.setAttribute("fill-opacity", here ? "1" : heat(which, k).toFixed(3));
      if (which === 1) element.setAttribute("aria-pressed", String(k === opened));
    }));
  }

  stress({ target: null, source: null }, null);
  return { element: drawn, stress };
}

const middle = (box: Box): number => box.x + box.width / 2;

const between = (x: number, y: number, to: number, bottom: number): string => {
  const half = (y + bottom) / 2;
  return `M${x.toFixed(1)},${y}C${x.toFixed(1)},${half} ${to.toFixed(1)},${half} ${to.toFixed(1)},${bottom}`;
};

const across = (x: number, y: number, to: number, down: number): string => {
  const half = (x + to) / 2;
  return `M${x.toFixed(1)},${y}C${half.toFixed(1)},${y} ${half.toFixed(1)},${down} ${to.toFixed(1)},${down}`;
};

/** Boxes of a row of words, from the right for scripts written so. */
function row(words: readonly string[], widths: readonly number[], start: number, y: number): Box[] {
  const mirrored = isRightToLeft(words.join(" "));
  const all = widths.reduce((sum, width) => sum + width + GAP, -GAP);
  let x = start;
  return words.map((text, k) => {
    const width = widths[k]!;
    const box = { x: mirrored ? start + all - (x - start) - width : x, y, width, text };
    x += width + GAP;
    return box;
  });
}

/** Boxes of a column of words, vertically centred. */
function column(words: readonly string[], width: number, x: number, most: number): Box[] {
  const top = ((most - words.length) * (TALL + 4)) / 2;
  return words.map((text, k) => ({ x, y: top + k * (TALL + 4), width, text }));
}
