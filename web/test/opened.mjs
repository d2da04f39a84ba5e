// A page in a real browser, with the network cut off: what the tests of pages and widgets stand on.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import axe from "axe-core";
import { chromium } from "playwright-core";

const args = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync",
];

/** Open a browser. */
export const launch = (executablePath) => chromium.launch({ executablePath, args });

/** Pages that are free, by their options: to make one takes as long as most of what is done with it. */
const free = new Map();

async function made(browser, options) {
  const context = await browser.newContext(options);
  context.setDefaultTimeout(30_000); // a busy machine takes its time
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && wrong.push(message.text()));
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("request", (request) => /^(file|blob|data):/.test(request.url()) || wrong.push(`asks for ${request.url()}`));
  return { page, wrong };
}

/** An empty page; whatever it complains of, or asks of a network, is an error when it is closed. */
export async function empty(browser, options = {}) {
  const settings = { offline: true, viewport: { width: 1200, height: 900 }, locale: "en-US", acceptDownloads: true, ...options };
  const key = JSON.stringify(settings);
  const found = free.get(key)?.pop() ?? (await made(browser, settings));
  const { page, wrong } = found;
  return {
    page,
    close: async () => {
      await page.mouse.move(0, 0);
      await page.emulateMedia({ media: null });
      await page.setViewportSize(settings.viewport);
      await page.goto("about:blank");
      assert.deepEqual(wrong.splice(0), []);
      free.set(key, [...(free.get(key) ?? []), found]);
    },
  };
}

/** A page of an address, as of `empty`. */
export async function opened(browser, address, options = {}) {
  const found = await empty(browser, options);
  await found.page.goto(address);
  return found;
}

/** The text of a place, without the marks that isolate the direction of words. */
export const textOf = async (place) => (await place.textContent()).replace(/[\u2066-\u2069]/g, "");

/** The address as the page knows it: `page.url()` learns of a new fragment later. */
export const addressOf = (page) => page.evaluate(() => location.href);

/** Until a place has a text, as `textOf` has it. */
export async function says(place, text) {
  await place.page().waitForFunction(([each, wanted]) => each.textContent.replace(/[\u2066-\u2069]/g, "") === wanted, [await place.elementHandle(), text]);
}

/** By the keyboard alone, to what matches. */
export async function reach(page, matching) {
  for (let k = 0; k < 40; k++) {
    await page.keyboard.press("Tab");
    if (await page.evaluate((each) => document.activeElement.matches(each), matching)) return;
  }
  assert.fail(`${matching} is out of reach`);
}

/** The name and the bytes of the file that a press of a button saves. */
export async function saved(page, button) {
  const [download] = await Promise.all([page.waitForEvent("download"), button.click()]);
  return [download.suggestedFilename(), await readFile(await download.path())];
}

/** What axe finds serious in a part of a page, once all that fades has faded, but for rules that are not asked. */
export async function serious(page, part = "html", unasked = []) {
  await page.waitForFunction(() => {
    const roots = [document, ...[...document.querySelectorAll("*")].flatMap((each) => each.shadowRoot ?? [])];
    return roots.flatMap((root) => root.getAnimations()).every((each) => each.playState === "finished");
  });
  await page.evaluate(axe.source);
  const rules = Object.fromEntries(unasked.map((each) => [each, { enabled: false }]));
  const { violations } = await page.evaluate(([include, options]) => window.axe.run({ include }, options), [[[part]], { rules }]);
  return violations
    .filter(({ impact }) => ["serious", "critical"].includes(impact))
    .map(({ id, nodes }) => `${id}: ${nodes[0].html} ${nodes[0].failureSummary}`);
}

/** Run scenarios by their names, or some of them, two at a time; prints {name: null, or what went wrong}. */
export async function run(browser, scenarios, only) {
  const outcomes = {};
  const waiting = Object.entries(scenarios).filter(([name]) => !only.length || only.includes(name));
  async function work() {
    for (let next; (next = waiting.shift()); ) {
      const [name, scenario] = next;
      outcomes[name] = await scenario().then(() => null, (error) => error.stack ?? String(error));
    }
  }
  await Promise.all([work(), work()]);
  await browser.close();
  process.stdout.write(JSON.stringify(outcomes));
}
