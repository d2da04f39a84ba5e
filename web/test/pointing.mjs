// How long a reader of a page with an image waits, in a real browser without a network: JSON out.
//   node pointing.mjs PAGE CHROMIUM
// opening: milliseconds from the navigation to the first map on the screen; maps: to all small maps; handling: of a
// pointer's move to another patch, with the drawing; frames: from one frame to the next while it moves.
import { pathToFileURL } from "node:url";
import { launch } from "./opened.mjs";

const [path, executablePath] = process.argv.slice(2);
const measured = { opening: [], maps: [], handling: [], frames: [], wrong: [] };
for (let round = 0; round < 3; round++) {
  const browser = await launch(executablePath);
  const page = await (await browser.newContext({ offline: true })).newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && measured.wrong.push(message.text()));
  page.on("pageerror", (error) => measured.wrong.push(String(error)));
  await page.addInitScript(() => {
    const look = () => {
      if (/\d/.test(document.querySelector(".views .says")?.textContent ?? "")) requestAnimationFrame(() => requestAnimationFrame((now) => (window.first = now)));
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  });
  await page.goto(pathToFileURL(path).href);
  await page.waitForFunction(() => window.first);
  measured.opening.push(await page.evaluate(() => window.first));
  await page.waitForFunction(() => document.querySelectorAll(".thumb canvas.mapped").length === document.querySelectorAll(".thumb").length);
  measured.maps.push(await page.evaluate(() => performance.now()));
  const { handling, frames } = await page.evaluate(async () => {
    const canvas = document.querySelector("canvas.patches");
    const { left, top, width, height } = canvas.getBoundingClientRect();
    const [handling, frames] = [[], []];
    let before = await new Promise(requestAnimationFrame);
    for (let k = 0; k < 90; k++) {
      const started = performance.now();
      canvas.dispatchEvent(new PointerEvent("pointermove", { clientX: left + ((k * 0.093) % 1) * width, clientY: top + ((k * 0.037) % 1) * height, bubbles: true }));
      handling.push(performance.now() - started);
      const now = await new Promise(requestAnimationFrame);
      frames.push(now - before);
      before = now;
    }
    return { handling: handling.slice(5), frames: frames.slice(5) };
  });
  measured.handling.push(...handling);
  measured.frames.push(...frames);
  await browser.close();
}
process.stdout.write(JSON.stringify(measured));
