// Widgets in a real browser, shown as anywidget shows them: what a reader of a notebook does.
//   node widget.mjs STATES CHROMIUM [NAME …]      prints {name: null, or what went wrong}
// STATES: JSON of what Python sends for a `translator`, and for maps: `counted` (1,013 × 757 numbers ((31 i + 17 j) mod 1009) / 1009,
// of which the one at 500, 300 is not a number) and `named` (two of 2 × 3 words).
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import axe from "axe-core";
import { launch, notebook } from "./notebook.mjs";

const [path, executablePath, ...only] = process.argv.slice(2);
const states = JSON.parse(await readFile(path, "utf8"));
const browser = await launch(executablePath);

const opened = async (names, options, style) => {
  const { page, wrong, close } = await notebook(browser, names.map((each) => ({ ...states[each.of ?? each], ...each.with })), options, style);
  return {
    page,
    close: async () => {
      await close();
      assert.deepEqual(wrong, []);
    },
  };
};
const cell = (page, k = 0) => page.locator(".dikkat").nth(k);
const says = async (place, text) => {
  await place.page().waitForFunction(([each, wanted]) => each.textContent === wanted, [await place.elementHandle(), text]);
};
const trait = (page, name, k = 0) => page.evaluate(([at, of]) => window.models[at].get(of), [k, name]);
const value = (i, j) => Math.fround(((31 * i + 17 * j) % 1009) / 1009);
const largest = (i, j, tall, wide) => {
  let most = 0;
  for (let row = i; row < Math.min(i + tall, 1013); row++) {
    for (let column = j; column < Math.min(j + wide, 757); column++) if (row !== 500 || column !== 300) most = Math.max(most, value(row, column));
  }
  return most;
};
const precise = (number) => number.toLocaleString("en", { maximumSignificantDigits: 4 });
const readout = (page, k = 0) => cell(page, k).locator(".cell-readout").first();
const canvas = (page, k = 0) => cell(page, k).locator("canvas").first();
/** Until frames bring nothing new: the pyramid is known, and every tile is sharp. */
const still = async (page) => {
  await page.waitForFunction(async () => {
    const canvas = document.querySelector(".dikkat").shadowRoot.querySelector("canvas");
    const frame = () => new Promise((resolve) => requestAnimationFrame(() => resolve(canvas.toDataURL())));
    const seen = [await frame(), await frame(), await frame()];
    return seen[0] === seen[1] && seen[1] === seen[2];
  });
};
const press = async (page, key, times = 1) => {
  for (let k = 0; k < times; k++) await page.keyboard.press(key);
};

const scenarios = {
  async "a translator tells Python what it shows, and follows what Python sets"() {
    const { page, close } = await opened(["translator"]);
    await says(cell(page).locator(".result"), "L'homme est calme.");
    await page.waitForFunction(() => window.models[0].get("translation") === "L'homme est calme.");
    await page.evaluate(() => window.models[0].set("text", "I lost."));
    await says(cell(page).locator(".result"), "J'ai perdu.");
    assert.equal(await cell(page).locator("textarea").inputValue(), "I lost.");
    await cell(page).locator("textarea").fill("Go.");
    await page.waitForFunction(() => window.models[0].get("translation") === "Va !");
    assert.equal(await trait(page, "text"), "Go.");
    assert.ok(await page.evaluate(() => window.models[0].saved) > 0);
    await close();
  },

  async "what a reader changes is kept, and is there again"() {
    const { page, close } = await opened(["translator"]);
    const weight = cell(page).locator(".weight-row[data-place] input.number").first();
    await weight.fill("90");
    await weight.press("Enter");
    await cell(page).locator(".changes li").waitFor();
    const address = await trait(page, "address");
    assert.match(address, /pins=0-0-0\.9/);
    await close();
    const again = await opened([{ of: "translator", with: { address } }]);
    await says(cell(again.page).locator(".changes li"), "step 1: The at 90%");
    await again.close();
  },

  async "the keyboard keeps its place inside the cell"() {
    const { page, close } = await opened(["translator"]);
    await cell(page).locator(".links .written").nth(0).focus();
    await press(page, "ArrowRight", 2);
    await page.keyboard.press("Enter");
    const shadow = (act) => page.evaluate(act);
    await page.waitForFunction(() => document.querySelector(".dikkat").shadowRoot.querySelector("#step-title").textContent.startsWith("Step 3"));
    assert.ok(await shadow(() => document.querySelector(".dikkat").shadowRoot.activeElement.matches(".links .written")));
    await cell(page).locator(".choice").nth(1).focus();
    await page.keyboard.press("Enter");
    await cell(page).locator(".changes li").waitFor();
    await page.waitForFunction(() => document.querySelector(".dikkat").shadowRoot.activeElement?.matches(".choice[aria-pressed=true]"));
    await close();
  },

  async "two cells stand beside each other, and nothing of them is outside"() {
    const { page, close } = await opened(["translator", "translator", "named"], {}, "button { letter-spacing: 9px } p { color: rgb(255, 0, 0) }");
    await says(cell(page, 0).locator(".result"), "L'homme est calme.");
    await cell(page, 1).locator("textarea").fill("I lost.");
    await says(cell(page, 1).locator(".result"), "J'ai perdu.");
    assert.equal(await cell(page, 0).locator(".result").textContent(), "L'homme est calme.");
    const outside = await page.evaluate(() => {
      const inside = document.querySelector(".dikkat").shadowRoot;
      document.body.append(Object.assign(document.createElement("button"), { textContent: "x" }));
      return {
        ids: document.querySelectorAll("[id]").length, styles: document.querySelectorAll("style").length + document.adoptedStyleSheets.length,
        round: getComputedStyle(document.querySelector("button")).borderRadius,
        spaced: getComputedStyle(inside.querySelector("button")).letterSpacing, red: getComputedStyle(inside.querySelector("p")).color,
      };
    });
    assert.equal(outside.ids, 0);
    assert.equal(outside.styles, 1);
    assert.equal(outside.round, "0px");
    assert.equal(outside.spaced, "normal");
    assert.notEqual(outside.red, "rgb(255, 0, 0)");
    await close();
  },

  async "taken away, it listens no more"() {
    const { page, close } = await opened(["translator"]);
    assert.ok(await page.evaluate(() => window.models[0].listeners.length) > 0);
    assert.equal(await page.evaluate(() => {
      window.leave[0]();
      return window.models[0].listeners.length;
    }), 0);
    await close();
  },

  async "a damaged model is told"() {
    const { page, close } = await opened([{ of: "translator", with: { model: { base64: "AAAA" } } }]);
    assert.match(await cell(page).locator(".trouble").textContent(), /damaged/);
    await close();
  },

  async "it is dark where the notebook is, and follows"() {
    const { page, close } = await opened(["translator", "named"], {}, "body.dark { background: rgb(17, 17, 17) }");
    const shade = () => page.evaluate(() => [...document.querySelectorAll(".dikkat")].map((each) => getComputedStyle(each.shadowRoot.querySelector(".card")).backgroundColor));
    assert.deepEqual(await shade(), Array(2).fill("rgb(255, 255, 255)"));
    const point = () => page.evaluate(() => {
      const canvas = document.querySelectorAll(".dikkat")[1].shadowRoot.querySelector("canvas");
      return canvas.toDataURL();
    });
    const light = await point();
    await page.evaluate(() => document.body.classList.add("dark"));
    await page.waitForFunction(() => getComputedStyle(document.querySelector(".dikkat").shadowRoot.querySelector(".card")).backgroundColor === "rgb(24, 29, 29)");
    await page.waitForFunction((before) => {
      const canvas = document.querySelectorAll(".dikkat")[1].shadowRoot.querySelector("canvas");
      return canvas.toDataURL() !== before;
    }, light);
    await close();
  },

  async "a map is read with the keyboard, from all of it to single cells"() {
    const { page, close } = await opened(["counted"]);
    await still(page);
    await cell(page).locator(".window").focus();
    await press(page, "ArrowDown");
    await press(page, "ArrowRight");
    const found = /^(\d+)–(\d+) × (\d+)–(\d+): at most (.*)$/.exec(await readout(page).textContent());
    const [top, bottom, left, right] = found.slice(1, 5).map(Number);
    assert.ok(top > 0 && bottom > top && left > 0 && right > left);
    assert.equal(found[5], precise(largest(top, left, bottom - top + 1, right - left + 1)));
    await press(page, "+", 12);
    assert.equal(await readout(page).textContent(), `${top} × ${left}: ${precise(value(top, left))}`);
    await press(page, "ArrowRight", 3);
    await press(page, "Shift+ArrowDown");
    assert.equal(await readout(page).textContent(), `${top + 10} × ${left + 3}: ${precise(value(top + 10, left + 3))}`);
    await press(page, "Home");
    assert.match(await readout(page).textContent(), /^\d+–\d+ × \d+–\d+: at most/);
    await press(page, "-");
    assert.ok(await cell(page).getByRole("button", { name: "Make smaller" }).isDisabled());
    await close();
  },

  async "a map is moved with pointer and wheel, and reads what is under the pointer"() {
    const { page, close } = await opened(["counted"]);
    await still(page);
    const box = await canvas(page).boundingBox();
    const [x, y] = [box.x + 150, box.y + 200];
    await page.mouse.move(x, y);
    for (let k = 0; k < 30; k++) await page.mouse.wheel(0, -300);
    await page.mouse.move(x + 1, y);
    const at = async () => /^(\d+) × (\d+): (.*)$/.exec(await readout(page).textContent()).slice(1);
    const [row, column, shown] = await at();
    assert.equal(shown, precise(value(+row, +column)));
    await page.mouse.down();
    await page.mouse.move(x + 1 - 128, y - 64, { steps: 4 });
    await page.mouse.up();
    await page.mouse.move(x + 2, y);
    const [below, beside, other] = await at();
    assert.deepEqual([+below, +beside], [+row + 1, +column + 2]); // cells of 64 pixels
    assert.equal(other, precise(value(+below, +beside)));
    await cell(page).getByRole("button", { name: "Show all" }).click();
    await still(page);
    await page.mouse.move(x, y);
    assert.match(await readout(page).textContent(), /at most/);
    await close();
  },

  async "two fingers enlarge a map"() {
    const { page, close } = await opened(["counted"], { hasTouch: true, viewport: { width: 400, height: 800 } });
    await still(page);
    const { x, y } = await canvas(page).boundingBox();
    const fingers = await page.context().newCDPSession(page);
    const touch = (type, ...points) => fingers.send("Input.dispatchTouchEvent", { type, touchPoints: points.map(([dx, dy], id) => ({ x: x + dx, y: y + dy, id })) });
    await touch("touchStart", [150, 150], [170, 170]);
    for (let k = 1; k <= 6; k++) await touch("touchMove", [150 - 12 * k, 150 - 12 * k], [170 + 12 * k, 170 + 12 * k]);
    await touch("touchEnd");
    assert.ok(await cell(page).getByRole("button", { name: "Show all" }).isEnabled());
    await close();
  },

  async "what is in view is a table, and what is no number says so"() {
    const { page, close } = await opened(["counted"]);
    await still(page);
    await cell(page).locator("summary").click();
    const rows = cell(page).locator("tbody tr");
    await rows.first().waitFor();
    assert.equal(await rows.count(), 16);
    assert.equal(await rows.nth(3).locator("th").textContent(), "192–255");
    assert.equal(await rows.nth(3).locator("td").nth(2).textContent(), precise(largest(192, 128, 64, 64)));
    await close();
    const named = await opened(["named"]);
    const tiles = cell(named.page).locator(".tiles").nth(1);
    await tiles.locator("summary").click();
    assert.deepEqual(await tiles.locator("thead th").allTextContents(), ["one", "two", "<b>three</b>"]);
    assert.deepEqual(await tiles.locator("tbody tr").nth(1).locator("th, td").allTextContents(), ["you", "0.125", "no number", "1E-7"]);
    await tiles.locator(".window").focus();
    await press(named.page, "ArrowRight");
    assert.equal(await tiles.locator(".cell-readout").textContent(), "me × two: 0.5");
    await named.close();
  },

  async "nothing is wider than a phone, and axe finds nothing serious, in light and dark"() {
    for (const style of ["", "body { background: #111; color: #eee }"]) {
      const { page, close } = await opened(["translator", "counted", "named"], { viewport: { width: 320, height: 640 } }, style);
      for (const details of await page.locator("details").all()) await details.evaluate((each) => (each.open = true));
      await cell(page, 1).locator("tbody tr").first().waitFor();
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 320);
      await page.evaluate(() => Promise.all(document.querySelector(".dikkat").shadowRoot.getAnimations().map((each) => each.finished)));
      await page.evaluate(axe.source);
      // A notebook has headings of its own; duplicates of ids in different shadows are not duplicates.
      const { violations } = await page.evaluate(() => window.axe.run({ include: [["main"]] }, { rules: { "page-has-heading-one": { enabled: false } } }));
      const serious = violations.filter((each) => ["serious", "critical"].includes(each.impact));
      assert.deepEqual(serious.map((each) => [each.id, each.nodes[0].html]), []);
      await close();
    }
  },
};

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
