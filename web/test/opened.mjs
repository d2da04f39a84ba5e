// A page in a real browser, with the network cut off: what the tests of pages stand on.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";

/** A fresh page; whatever it complains of, or asks of a network, is an error in the end. */
export async function opened(browser, address, options = {}) {
  const context = await browser.newContext({
    offline: true, viewport: { width: 1200, height: 900 }, locale: "en-US", acceptDownloads: true, ...options,
  });
  context.setDefaultTimeout(4000);
  const page = await context.newPage();
  const wrong = [];
  page.on("console", (message) => ["error", "warning"].includes(message.type()) && wrong.push(message.text()));
  page.on("pageerror", (error) => wrong.push(String(error)));
  page.on("request", (request) => /^(file|blob|data):/.test(request.url()) || wrong.push(`asks for ${request.url()}`));
  await page.goto(address);
  return {
    page,
    close: async () => {
      await context.close();
      assert.deepEqual(wrong, []);
    },
  };
}

/** The name and the bytes of the file that a press of a button saves. */
export async function saved(page, button) {
  const [download] = await Promise.all([page.waitForEvent("download"), button.click()]);
  return [download.suggestedFilename(), await readFile(await download.path())];
}

/** Run scenarios by their names, or some of them; prints {name: null, or what went wrong}. */
export async function run(browser, scenarios, only) {
  const found = {};
  for (const [name, scenario] of Object.entries(scenarios)) {
    if (only.length && !only.includes(name)) continue;
    try {
      await scenario();
      found[name] = null;
    } catch (error) {
      found[name] = error.stack ?? String(error);
    }
  }
  await browser.close();
  process.stdout.write(JSON.stringify(found));
}
