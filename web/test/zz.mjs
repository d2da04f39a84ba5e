import { launch, notebook } from "./notebook.mjs";
import { readFileSync } from "node:fs";
const S = JSON.parse(readFileSync("/tmp/wtp/states.json"));
const [,, out, names, w, scheme, locale, bg] = process.argv;
const b = await launch("/usr/bin/chromium");
const { page, wrong } = await notebook(b, names.split(",").map(n=>S[n]), { viewport: { width: +w||1000, height: 900 }, colorScheme: scheme||"light", locale: locale||"en-US" }, bg?`body{background:${bg};color:#eee}`:"");
await page.waitForTimeout(1500);
await page.screenshot({ path: out, fullPage: true });
console.log(wrong); await b.close();
