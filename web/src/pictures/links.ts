/** Source words above target words, each in as many lines as the width asks for, with a curve for each weight. */
import { isRightToLeft, s, shortened, visible, widthOf } from "../page/dom";
import { percent, t } from "../page/strings";
import { argmax, ceiling, type Aligned, type Listeners, type Picture, type Spot } from "./aligned";

/** Sizes in pixels: letters, height of a box, space between boxes, space beside letters, space between both texts. */
const SIZES = [[16, 34, 10, 10, 104], [14, 28, 7, 7, 80], [12, 24, 3, 4, 64]] as const;
const SHARE = 0.5; // of the window's height: a picture that is taller is drawn in the next smaller size
const FAINTEST = 0.04; // weights below it are drawn only while their word is highlighted
const CROWDED = 4; // lines of words: in a picture of more, no curves are drawn while no word is highlighted

interface Box {
  readonly x: number;
  readonly y: number;
  readonly width: number;
  readonly text: string;
}

/** @param room available width, in pixels */
export function links(given: Aligned, room: number, listeners: Listeners): Picture {
  const { source, target, weights, changed, languages } = given;
  const sides = [source.map(visible), target.map(visible)] as const;
  const layouts = SIZES.map((size) => ({ size, placed: sides.map((words) => wrapped(words, size, room)) }));
  const heightOf = ({ size, placed }: (typeof layouts)[number]): number => placed[0]!.height + size[4] + placed[1]!.height;
  const chosen = layouts.find((each) => heightOf(each) <= SHARE * innerHeight) ?? layouts.at(-1)!;
  const [letters, tall, , , apart] = chosen.size;
  const height = heightOf(chosen);
  const lower = chosen.placed[0]!.height + apart;
  const above = chosen.placed[0]!.boxes;
  const below = chosen.placed[1]!.boxes.map((box) => ({ ...box, y: box.y + lower }));
  const rows = chosen.placed[0]!.lines + chosen.placed[1]!.lines;

  const full = ceiling(weights);
  const lines = weights.flatMap((row, i) =>
    [...row].map((weight, j) => {
      const [from, to] = [above[j]!, below[i]!];
      const path = between(from.x + from.width / 2, from.y + tall, to.x + to.width / 2, to.y);
      return { i, j, weight, element: s("path", { d: path, class: "link", "stroke-width": (0.75 + (5 * weight) / full).toFixed(2) }) };
    }));
  const words = [above, below].map((side, which) => side.map((box, k) => word(box, which === 1, k)));
  const drawn = s(
    "svg",
    { viewBox: `0 0 ${Math.ceil(room)} ${Math.ceil(height)}`, width: Math.ceil(room), height: Math.ceil(height), class: "links", role: "group", "aria-label": t("links") },
    s("g", { class: "lines" }, ...lines.map((line) => line.element)),
    s("g", { class: "backs" }, ...[...above, ...below].map((box) => s("rect", placeOf(box)))),
    ...words.flat(),
  );

  function placeOf({ x, y, width }: Box): Record<string, number> {
    return { x, y, width, height: tall, rx: tall / 4 };
  }

  function word(box: Box, written: boolean, k: number): SVGGElement {
    const spot: Spot = written ? { target: k, source: null } : { target: null, source: k };
    const short = shortened(box.text, box.width - 6, letters);
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
      s("rect", placeOf(box)),
      s(
        "text",
        { x: box.x + box.width / 2, y: box.y + tall / 2, "text-anchor": "middle", "dominant-baseline": "central", "font-size": letters, lang: languages?.[written ? 1 : 0] },
        short,
      ),
      short === box.text ? null : s("title", {}, box.text),
    );
  }

  function keys(event: KeyboardEvent, written: boolean, k: number): void {
    const side = words[written ? 1 : 0]!;
    const mirrored = isRightToLeft(sides[written ? 1 : 0].join(" "));
    const step = { ArrowRight: mirrored ? -1 : 1, ArrowLeft: mirrored ? 1 : -1 }[event.key];
    const to = event.key === "Home" ? 0 : event.key === "End" ? side.length - 1 : step === undefined ? null : k + step;
    if (event.key === "Enter" || event.key === " ") {
      listeners.open(written ? { target: k, source: null } : { target: null, source: k });
    } else if (event.key === (written ? "ArrowUp" : "ArrowDown")) {
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
    // Curves that cross lines of words are drawn of the highlighted word alone.
    const faint = rows <= 2 || (rows <= CROWDED && resting && opened === null);
    for (const { i, j, weight, element } of lines) {
      const own = (target === null || i === target) && (spot.source === null || j === spot.source);
      const strong = own && weight >= 0.005 && !(resting && opened === null);
      element.setAttribute("visibility", strong || (weight >= FAINTEST && faint) ? "visible" : "hidden");
      element.setAttribute("stroke-opacity", (strong || resting ? 0.12 + (0.88 * weight) / full : 0.07).toFixed(3));
      element.classList.toggle("strong", strong);
    }
    const heat = (side: number, k: number): number => {
      if (side === 0) return target === null ? 0 : (weights[target]?.[k] ?? 0) / full;
      return spot.source === null ? 0 : (weights[k]?.[spot.source] ?? 0) / full;
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

const between = (x: number, y: number, to: number, bottom: number): string => {
  const half = (y + bottom) / 2;
  return `M${x.toFixed(1)},${y}C${x.toFixed(1)},${half} ${to.toFixed(1)},${half} ${to.toFixed(1)},${bottom}`;
};

/** Boxes of words in lines, from the right for scripts written so; a line that is the only one is centred. */
function wrapped(words: readonly string[], [letters, tall, gap, beside]: (typeof SIZES)[number], room: number): { boxes: Box[]; lines: number; height: number } {
  const mirrored = isRightToLeft(words.join(" "));
  const boxes: Box[] = [];
  let [x, lines] = [0, 1];
  for (const text of words) {
    const width = Math.min(room, widthOf(text, letters) + 2 * beside);
    if (x && x + width > room) [x, lines] = [0, lines + 1];
    boxes.push({ x: mirrored ? room - x - width : x, y: (lines - 1) * (tall + gap), width, text });
    x += width + gap;
  }
  const aside = lines > 1 ? 0 : ((mirrored ? -1 : 1) * (room - x + gap)) / 2;
  return { boxes: boxes.map((box) => ({ ...box, x: box.x + aside })), lines, height: lines * (tall + gap) - gap };
}
