// Take the README's picture of the playground of a page of `dikkat export`, in Chromium.
//   node tools/picture/playground.mjs PAGE FILE.png [CHROMIUM]
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "../../web/test/opened.mjs";

const [path, file, chromium = "/usr/bin/chromium"] = process.argv.slice(2);
const browser = await launch(chromium);
const context = await browser.newContext({ offline: true, viewport: { width: 880, height: 900 }, locale: "en-US", colorScheme: "light" });
const page = await context.newPage();
await page.goto(`${pathToFileURL(resolve(path)).href}#room=playground`);
await page.locator("#room section").first().waitFor();
await page.locator("#room section").first().screenshot({ path: file });
await browser.close();
