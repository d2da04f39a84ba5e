// Frames a second of a map that is dragged, in a real browser: JSON out.
//   node pan.mjs MODULE STYLE CHROMIUM SIDE
// A map of SIDE × SIDE weights is made in the page, enlarged to each of three steps, and dragged to and fro, a frame after the other.
import { readFile } from "node:fs/promises";
import { launch } from "./opened.mjs";

const [module, style, executablePath, side] = process.argv.slice(2);
const browser = await launch(executablePath);
const page = await (await browser.newContext({ offline: true, viewport: { width: 1200, height: 900 } })).newPage();
page.setDefaultTimeout(120_000);
const wrong = [];
page.on("console", (message) => ["error", "warning"].includes(message.type()) && wrong.push(message.text()));
page.on("pageerror", (error) => wrong.push(String(error)));
await page.setContent(`<!doctype html><html lang="en"><head><style>${await readFile(style, "utf8")}</style></head><body><main></main></body></html>`);
const found = await page.evaluate(async ({ code, side }) => {
  const place = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const { TileMap } = await import(place);
  const values = new Float32Array(side * side);
  let seed = 1;
  for (let i = 0, at = 0; i < side; i++) {
    for (let j = 0; j < side; j++, at++) {
      seed = (Math.imul(seed, 1664525) + 1013904223) | 0;
      values[at] = ((seed >>> 8) / 2 ** 24) ** 4 * Math.exp((-((i - j) ** 2) / side) * 0.01);
    }
  }
  const frame = () => new Promise(requestAnimationFrame);
  const axis = (title) => ({ title, count: side, extent: side, tokens: null });
  const started = performance.now();
  const map = new TileMap({ matrix: { rows: side, columns: side, values }, range: [0, 1], rows: axis("Queries"), columns: axis("Keys"), label: "Map" });
  document.querySelector("main").append(map.element);
  const canvas = map.element.querySelector("canvas");
  // From the numbers to the whole map, in frames: the longest of them is how long the page does not answer.
  const gaps = [];
  let before = await frame();
  const first = before - started;
  while (!map.settled) {
    const now = await frame();
    gaps.push(now - before);
    before = now;
  }
  const opening = { first, whole: before - started, longest: Math.max(...gaps) };
  const box = canvas.getBoundingClientRect();
  const [x, y] = [box.left + box.width / 2, box.top + box.height / 2];
  const pointer = (type, dx, dy) => canvas.dispatchEvent(new PointerEvent(type, { clientX: x + dx, clientY: y + dy, pointerId: 1, button: 0, pointerType: "touch", bubbles: true, cancelable: true }));
  canvas.setPointerCapture = () => undefined; // which only a pointer that is there can be caught by
  const rounds = [];
  for (const cell of [0.2, 1.5, 24]) {
    map.view.home();
    map.view.zoom(cell / map.view.scaleX, box.width / 2, box.height / 2);
    pointer("pointerdown", 0, 0);
    const frames = [];
    let last = await frame();
    for (let k = 1; k <= 240; k++) {
      pointer("pointermove", 700 * Math.sin(k / 13), 500 * Math.sin(k / 17));
      const now = await frame();
      frames.push(now - last);
      last = now;
    }
    pointer("pointerup", 0, 0);
    rounds.push({ cell: map.view.scaleX, frames });
  }
  return { opening, rounds, canvas: [canvas.width, canvas.height] };
}, { code: await readFile(module, "utf8"), side: Number(side) });
const version = browser.version();
await browser.close();
process.stdout.write(JSON.stringify({ ...found, wrong, browser: version }));
