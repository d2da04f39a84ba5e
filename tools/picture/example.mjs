// Record the animation of the README's quick start: the page of dikkat.show.example_model() in Chromium.
//   node tools/picture/example.mjs PAGE FOLDER [CHROMIUM]      writes example.gif; needs ffmpeg
// PAGE is the page.html of the quick start.
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { launch } from "../../web/test/opened.mjs";

const [path, folder, chromium = "/usr/bin/chromium"] = process.argv.slice(2);
const [WIDTH, HEIGHT, FRAMES_PER_SECOND] = [880, 690, 0.8];

const scratch = mkdtempSync(join(tmpdir(), "example-"));
const browser = await launch(chromium);
const context = await browser.newContext({ offline: true, viewport: { width: WIDTH, height: HEIGHT }, locale: "en-US", colorScheme: "light", reducedMotion: "reduce" });
const page = await context.newPage();
await page.goto(pathToFileURL(resolve(path)).href);
const words = page.locator("article").first().getByText(/^(when|life|gives|you)$/);
await words.first().waitFor();
const count = await words.count(); // both columns: queries, then keys
const second = [...Array(count / 2).keys()].slice(-4);
for (const [frame, index] of [null, ...second].entries()) {
  if (index !== null) await words.nth(index).hover();
  await page.waitForTimeout(400);
  await page.screenshot({ path: join(scratch, `${frame}.png`) });
}
await browser.close();
execFileSync("ffmpeg", ["-v", "error", "-y", "-framerate", String(FRAMES_PER_SECOND), "-i", join(scratch, "%d.png"), "-filter_complex",
  "split[a][b];[a]palettegen=max_colors=64:stats_mode=full[p];[b][p]paletteuse=dither=none:diff_mode=rectangle", "-loop", "0", join(folder, "example.gif")]);
rmSync(scratch, { recursive: true });
