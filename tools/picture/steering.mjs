// Record the README's animation: a page of `dikkat export` in Chromium, with a drawn pointer.
//   node tools/picture/steering.mjs PAGE FOLDER [CHROMIUM]      writes steering.gif and steering.png; needs ffmpeg
// PAGE shows the demo's model: python examples/demo.py && dikkat export demo/model --html PAGE --title "English → French" \
//   --example "We work with her." --example "I lost."
import { execFileSync } from "node:child_process";
import { mkdtempSync, renameSync, rmSync, writeFileSync } from "node:fs";
import { join, resolve } from "node:path";
import { tmpdir } from "node:os";
import { pathToFileURL } from "node:url";
import { launch } from "../../web/test/opened.mjs";

const [path, folder, chromium = "/usr/bin/chromium"] = process.argv.slice(2);
const SENTENCE = "The famous doctor can help this girl.";
const [STEP, WORD, SHARE] = ["peut", "help", 0.92]; // with attention on "help" instead of "can", it writes "a aidé" instead of "peut aider"
const [WIDTH, HEIGHT, STILL] = [880, 790, 860];
const REST = [700, 720]; // position of the pointer while the page scrolls
const FRAME = 80; // milliseconds of a frame during movement; all durations are multiples of ffmpeg's 40

const scratch = mkdtempSync(join(tmpdir(), "steering-"));
const browser = await launch(chromium);
const context = await browser.newContext({ offline: true, viewport: { width: WIDTH, height: HEIGHT }, locale: "en-US", colorScheme: "light", reducedMotion: "reduce" });
const page = await context.newPage();
await page.goto(`${pathToFileURL(resolve(path)).href}#text=`);
await page.locator("#text").waitFor();

const frames = [];
/** Takes a frame with a duration in milliseconds. */
async function shoot(milliseconds = FRAME) {
  const name = join(scratch, `${String(frames.length).padStart(4, "0")}.png`);
  await page.screenshot({ path: name, caret: "initial" });
  frames.push({ name, milliseconds });
}

// Headless browsers draw no pointer.
await page.evaluate(() => {
  const pointer = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  pointer.setAttribute("viewBox", "0 0 20 28");
  pointer.innerHTML = '<path d="M2 1v22l5.5-5 3.6 8.4 4-1.7-3.6-8.2H19z" fill="#111" stroke="#fff" stroke-width="1.6"/>';
  Object.assign(pointer.style, { position: "fixed", zIndex: 99, width: "20px", height: "28px", left: "-40px", top: "0", pointerEvents: "none" });
  document.body.append(pointer);
  window.pointTo = (x, y) => Object.assign(pointer.style, { left: `${x - 2}px`, top: `${y - 1}px` });
});
let at = [600, 720];
async function pointTo(x, y) {
  at = [x, y];
  await page.mouse.move(x, y);
  await page.evaluate(([left, top]) => window.pointTo(left, top), at);
}
const eased = (share) => share * share * (3 - 2 * share);
/** Moves the pointer in `count` frames. */
async function move([x, y], count = 8, onFrame = shoot) {
  const [left, top] = at;
  for (let k = 1; k <= count; k++) {
    const share = eased(k / count);
    await pointTo(left + (x - left) * share, top + (y - top) * share);
    await onFrame();
  }
}
const centerOf = async (locator) => {
  const { x, y, width, height } = await locator.boundingBox();
  return [x + width / 2, y + height / 2];
};
/** Scrolls the page in `count` frames and moves the pointer to `REST`. */
async function scroll(to, count) {
  const from = await page.evaluate(() => window.scrollY);
  const [left, top] = at;
  for (let k = 1; k <= count; k++) {
    const share = eased(k / count);
    await page.evaluate((y) => window.scrollTo(0, y), from + (to - from) * share);
    await pointTo(left + (REST[0] - left) * share, top + (REST[1] - top) * share);
    await page.waitForTimeout(80);
    await shoot();
  }
}
const settled = () => page.waitForTimeout(250);

// Type the sentence; the translation appears.
await pointTo(...at);
await page.locator("#text").focus();
await shoot(480);
for (const word of SENTENCE.split(/(?<= )/)) {
  await page.keyboard.insertText(word);
  await settled();
  await shoot(120);
}
await shoot(800);

// Point at words, which show their attention.
const word = (text) => page.locator(".links .written", { hasText: new RegExp(`^${text}$`) });
for (const text of ["célèbre", STEP]) {
  await move(await centerOf(word(text)), 5);
  await settled();
  await shoot(800);
}
await page.mouse.down();
await page.mouse.up();
await settled();
await shoot(320);

// Scroll to the weights of the step.
const row = page.locator(".weight-row[data-place]", { hasText: WORD });
const bottom = (await page.locator(".weight-row[data-place]").last().boundingBox()).y + 60;
const offset = Math.max(0, bottom - HEIGHT);
await scroll(offset, 7);
await settled();
await shoot(600);

// Drag a weight; the sentence is translated again.
const slider = row.locator("input[type=range]");
const { x, y, width, height } = await slider.boundingBox();
const from = Number(await slider.inputValue()) / 100;
const positionAt = (share) => [x + 8 + share * (width - 16), y + height / 2];
await move(positionAt(from), 6);
await page.mouse.down();
await shoot(240);
await move(positionAt(SHARE), 14, async () => {
  await page.waitForTimeout(200);
  await shoot(120);
});
await page.mouse.up();
await settled();
await shoot(1600);

// Back at the top: both texts, with the changes.
await scroll(0, 6);
await settled();
await shoot(1000);
await page.setViewportSize({ width: WIDTH, height: STILL });
await settled();
await page.screenshot({ path: join(scratch, "still.png") });
await browser.close();

const list = [...frames, { name: frames.at(-1).name, milliseconds: 40 }].map(({ name, milliseconds }) => `file '${name}'\nduration ${milliseconds / 1000}`).join("\n");
writeFileSync(join(scratch, "list.txt"), list);
const gif = join(scratch, "steering.gif");
execFileSync("ffmpeg", ["-v", "error", "-f", "concat", "-safe", "0", "-i", join(scratch, "list.txt"), "-fps_mode", "vfr", "-filter_complex",
  "split[a][b];[a]palettegen=max_colors=64:stats_mode=full[p];[b][p]paletteuse=dither=none:diff_mode=rectangle", "-loop", "0", gif]);
renameSync(gif, join(folder, "steering.gif"));
renameSync(join(scratch, "still.png"), join(folder, "steering.png"));
rmSync(scratch, { recursive: true });
console.log(`${frames.length} frames, ${frames.reduce((sum, frame) => sum + frame.milliseconds, 0) / 1000} s`);
