// How long a reader waits, in a real browser without a network: JSON out.
//   node measure.mjs PAGE CHROMIUM SENTENCE
// opening: milliseconds from the navigation to the first translation on the screen (the page's own example);
// translating: from a new sentence to its translation; pinning: from a weight to the new text and its pictures.
import { pathToFileURL } from "node:url";
import { launch } from "./opened.mjs";

const [path, executablePath, sentence] = process.argv.slice(2);
const found = { opening: [], translating: [], pinning: [], wrong: [] };
for (let round = 0; round < 5; round++) {
  const browser = await launch(executablePath);
  const page = await (await browser.newContext({ offline: true })).newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && found.wrong.push(message.text()));
  page.on("pageerror", (error) => found.wrong.push(String(error)));
  await page.addInitScript(() => {
    const look = () => {
      // The second frame after: what has changed is on the screen by then.
      if (document.querySelector(".links")) requestAnimationFrame(() => requestAnimationFrame((now) => (window.first = now)));
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  });
  await page.goto(pathToFileURL(path).href);
  await page.waitForFunction(() => window.first);
  found.opening.push(await page.evaluate(() => window.first));
  const until = (act) => page.evaluate(([source, text]) => new Promise((resolve) => {
    const place = document.querySelector(".pictures");
    const started = performance.now();
    const seen = new MutationObserver(() => {
      seen.disconnect();
      requestAnimationFrame(() => setTimeout(() => resolve(performance.now() - started)));
    });
    seen.observe(place, { childList: true });
    (0, window[source])(text);
  }), act);
  await page.evaluate(() => {
    window.type = (text) => {
      const field = document.querySelector("#text");
      field.value = text;
      field.dispatchEvent(new Event("input"));
    };
    window.pin = (place) => {
      const slider = document.querySelectorAll(".weight-row input[type=range]")[place];
      slider.value = "80";
      slider.dispatchEvent(new Event("change"));
    };
  });
  found.translating.push(await until(["type", sentence]));
  for (const place of [1, 2, 3]) found.pinning.push(await until(["pin", place]));
  await browser.close();
}
process.stdout.write(JSON.stringify(found));
