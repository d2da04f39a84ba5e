// When a page of sentences is first painted, and when it has its first picture, in fresh browsers without a network: JSON out.
//   node paint.mjs PAGE CHROMIUM
import { pathToFileURL } from "node:url";
import { launch } from "./opened.mjs";

const [path, executablePath] = process.argv.slice(2);
const found = { painted: [], drawn: [], wrong: [], browser: "" };
for (let round = 0; round < 7; round++) {
  const browser = await launch(executablePath);
  found.browser = browser.version();
  const page = await (await browser.newContext({ offline: true, viewport: { width: 1200, height: 900 } })).newPage();
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && found.wrong.push(message.text()));
  page.on("pageerror", (error) => found.wrong.push(String(error)));
  await page.addInitScript(() => {
    const look = () => {
      // The second frame after: the picture is on the screen by then.
      if (document.querySelector(".links")) requestAnimationFrame(() => requestAnimationFrame((now) => (window.drawn = now)));
      else requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
  });
  await page.goto(pathToFileURL(path).href);
  await page.waitForFunction(() => window.drawn);
  found.drawn.push(await page.evaluate(() => window.drawn));
  found.painted.push(await page.evaluate(() => performance.getEntriesByName("first-contentful-paint")[0].startTime));
  await browser.close();
}
process.stdout.write(JSON.stringify(found));
