// Widgets in a real browser, shown as anywidget shows them: what a reader of a notebook does.
//   node widget.mjs STATES CHROMIUM [NAME …]      prints {name: null, or what went wrong}
// STATES: JSON of what Python sends for a `translator`, and for maps: `counted` (1,013 × 757 numbers ((31 i + 17 j) mod 1009) / 1009,
// of which the one at 500, 300 is not a number) and `named` (two of 2 × 3 words).
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { notebook } from "./notebook.mjs";
import { launch, run, says, serious, textOf } from "./opened.mjs";

const [path, executablePath, ...only] = process.argv.slice(2);
const states = JSON.parse(await readFile(path, "utf8"));
const browser = await launch(executablePath);

const opened = (names, options, style) =>
  notebook(browser, names.map((each) => ({ ...states[each.of ?? each], ...each.with })), options, style);
const cell = (page, k = 0) => page.locator(".dikkat").nth(k);
const trait = (page, name, k = 0) => page.evaluate(([at, of]) => window.models[at].get(of), [k, name]);
const value = (i, j) => Math.fround(((31 * i + 17 * j) % 1009) / 1009);
const largest = (i, j, tall, wide, [rows, columns] = [1013, 757]) => {
  let most = 0;
  for (let row = i; row < Math.min(i + tall, rows); row++) {
    for (let column = j; column < Math.min(j + wide, columns); column++) if (row !== 500 || column !== 300) most = Math.max(most, value(row, column));
  }
  return most;
};
const precise = (number) => number.toLocaleString("en", { maximumSignificantDigits: 4 });
const readout = (page, k = 0) => cell(page, k).locator(".cell-readout").first();
const canvas = (page, k = 0) => cell(page, k).locator("canvas").first();
/** Until all numbers are known, and every tile is sharp. */
const still = (page, k = 0) => cell(page, k).locator('.window[aria-busy="false"]').first().waitFor();
const isDisabled = (page, name) => cell(page).locator(`button:disabled[aria-label="${name}"]`).first().waitFor();
const press = async (page, key, times = 1) => {
  for (let k = 0; k < times; k++) await page.keyboard.press(key);
};

/**
 * A page with one map of the module's own, of numbers that are made there: `window.map`.
 * @param peaks [row, column] of each number that is 1, all others being 0; none: numbers as `counted` has them
 * @param held whether no frame follows the first drawing, which has time for no more than one piece of work
 */
const mapped = async ([rows, columns], { peaks = null, held = false } = {}) => {
  const { page, close } = await opened([]);
  await page.addStyleTag({ content: states.counted.sheet });
  await page.evaluate(async ({ code, rows, columns, peaks, held }) => {
    const { TileMap } = await import(URL.createObjectURL(new Blob([code], { type: "text/javascript" })));
    const values = new Float32Array(rows * columns);
    for (const [row, column] of peaks ?? []) values[row * columns + column] = 1;
    for (let i = 0, at = 0; i < rows && !peaks; i++) for (let j = 0; j < columns; j++, at++) values[at] = ((31 * i + 17 * j) % 1009) / 1009;
    const frame = window.requestAnimationFrame.bind(window);
    let waiting = false;
    if (held) {
      let now = 0;
      performance.now = () => (now += 1000);
      window.requestAnimationFrame = () => (waiting = true);
    }
    const axis = (title, count) => ({ title, count, extent: count, tokens: null });
    window.map = new TileMap({ matrix: { rows, columns, values }, range: [0, 1], rows: axis("Queries", rows), columns: axis("Keys", columns), label: "Map" });
    const place = Object.assign(document.createElement("div"), { className: "dikkat" });
    place.append(window.map.element);
    document.querySelector("main").append(place);
    while (held ? !waiting : !window.map.settled) await new Promise(frame);
  }, { code: states.counted._esm, rows, columns, peaks, held });
  return { page, close };
};
/** What is read out at a place of the canvas, of which each pixel is a point. */
const readAt = async (page, x, y) => {
  const box = await canvas(page).boundingBox();
  await page.mouse.move(box.x + x, box.y + y);
  return textOf(readout(page));
};

/** Of a canvas, how many points have a colour. */
const points = ([canvas, [red, green, blue]]) => {
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const { data } = copy.getImageData(0, 0, canvas.width, canvas.height);
  return data.filter((each, k) => k % 4 === 0 && each === red && data[k + 1] === green && data[k + 2] === blue).length;
};
/** What is read out of one cell, or of a block, has the right number. Returns the row and the column where it begins. */
const isRight = (text, shape) => {
  const [, top, bottom, left, right, shown] = /^(\d+)(?:–(\d+))? × (\d+)(?:–(\d+))?: (?:at most )?([\d.E-]+)$/.exec(text) ?? assert.fail(text);
  const count = (first, last) => 1 + Number(last ?? first) - first;
  assert.equal(shown, precise(largest(+top, +left, count(top, bottom), count(left, right), shape)), text);
  return [+top, +left];
};

const scenarios = {
  async "a translator tells Python what it shows, and follows what Python sets"() {
    const { page, close } = await opened(["translator"]);
    await says(cell(page).locator(".result"), "L'homme est calme.");
    await page.waitForFunction(() => window.models[0].get("translation") === "L'homme est calme.");
    await page.evaluate(() => window.models[0].set("text", "I lost."));
    await says(cell(page).locator(".result"), "J'ai perdu.");
    assert.equal(await cell(page).locator("#text").inputValue(), "I lost.");
    await cell(page).locator("#text").fill("Go.");
    await page.waitForFunction(() => window.models[0].get("translation") === "Va !");
    assert.equal(await trait(page, "text"), "Go.");
    assert.ok(await page.evaluate(() => window.models[0].saved) > 0);
    await close();
  },

  async "what was changed in another sentence is not this one's"() {
    const address = "text=The+man+is+calm.&beam=2&pins=0-0-0.9&step=2";
    const { page, close } = await opened([{ of: "translator", with: { text: "I lost.", address } }]);
    await says(cell(page).locator(".result"), "J'ai perdu.");
    assert.equal(await cell(page).locator(".changes li").count(), 0);
    assert.match(await cell(page).locator("#step-title").textContent(), /^Step 1 of/);
    assert.equal(await trait(page, "address"), "text=I+lost.");
    const weight = cell(page).locator(".weight-row[data-place] input.number").first();
    await weight.fill("90");
    await weight.press("Enter");
    await cell(page).locator(".changes li").waitFor();
    await page.evaluate(() => window.models[0].set("text", "Go."));
    await says(cell(page).locator(".result"), "Va !");
    assert.equal(await cell(page).locator(".changes li").count(), 0);
    assert.equal(await trait(page, "address"), "text=Go.");
    await close();
  },

  async "words are measured as they are written, though they are drawn before they are in the page"() {
    const { page, close } = await opened(["translator"]);
    await cell(page).locator(".links .written").first().waitFor();
    const spaces = await cell(page).locator(".links .word:not(.opened)").evaluateAll((all) =>
      all.map((each) => each.querySelector("rect").width.baseVal.value - each.querySelector("text").getComputedTextLength()));
    assert.equal(spaces.length, 5 + 4);
    for (const space of spaces) assert.ok(Math.abs(space - 20) < 1, String(spaces));
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
    await cell(page, 1).locator("#text").fill("I lost.");
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
    await still(page, 1); // what is drawn later would look like a change
    const shade = () => page.evaluate(() => [...document.querySelectorAll(".dikkat")].map((each) => getComputedStyle(each.shadowRoot.querySelector(".card")).backgroundColor));
    const map = await canvas(page, 1).elementHandle();
    const [light, dark] = [[69, 193, 189], [95, 208, 203]]; // of the strongest weight
    assert.deepEqual(await shade(), Array(2).fill("rgb(255, 255, 255)"));
    assert.ok(await page.evaluate(points, [map, light]));
    assert.equal(await page.evaluate(points, [map, dark]), 0);
    await page.evaluate(() => document.body.classList.add("dark"));
    await page.waitForFunction(() => [...document.querySelectorAll(".dikkat")].every((each) => getComputedStyle(each.shadowRoot.querySelector(".card")).backgroundColor === "rgb(24, 29, 29)"));
    await page.waitForFunction(points, [map, dark]);
    assert.equal(await page.evaluate(points, [map, light]), 0);
    await close();
  },

  async "a map is read with the keyboard, from all of it to single cells"() {
    const { page, close } = await opened(["counted"]);
    await still(page);
    await cell(page).locator(".window").focus();
    await press(page, "ArrowDown");
    await press(page, "ArrowRight");
    const found = /^(\d+)–(\d+) × (\d+)–(\d+): at most (.*)$/.exec(await textOf(readout(page)));
    const [top, bottom, left, right] = found.slice(1, 5).map(Number);
    assert.ok(top > 0 && bottom > top && left > 0 && right > left);
    assert.equal(found[5], precise(largest(top, left, bottom - top + 1, right - left + 1)));
    await press(page, "+", 12);
    assert.equal(await textOf(readout(page)), `${top} × ${left}: ${precise(value(top, left))}`);
    await press(page, "ArrowRight", 3);
    await press(page, "Shift+ArrowDown");
    assert.equal(await textOf(readout(page)), `${top + 10} × ${left + 3}: ${precise(value(top + 10, left + 3))}`);
    await press(page, "Home");
    assert.match(await textOf(readout(page)), /^\d+–\d+ × \d+–\d+: at most/);
    await press(page, "-");
    await isDisabled(page, "Zoom out");
    await close();
  },

  async "a map is moved with pointer and wheel, and reads what is under the pointer"() {
    const { page, close } = await opened(["counted"]);
    await still(page);
    const box = await canvas(page).boundingBox();
    const [x, y] = [box.x + 150, box.y + 200];
    await page.mouse.move(x, y);
    for (let k = 0; k < 30; k++) await page.mouse.wheel(0, -300);
    await isDisabled(page, "Zoom in");
    await page.mouse.move(x + 1, y);
    const at = async () => /^(\d+) × (\d+): (.*)$/.exec(await textOf(readout(page))).slice(1);
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
    assert.match(await textOf(readout(page)), /at most/);
    await close();
  },

  async "a cell has the colour of its number, from tiles and one by one"() {
    const { page, close } = await opened(["counted"]);
    await still(page);
    const { x, y, width } = await canvas(page).boundingBox();
    const [well, glow] = [[241, 243, 241], [69, 193, 189]];
    await page.mouse.move(x + 300, y + 300);
    for (const turns of [4, 2, 30]) { // cells of 8, of 30 and of 64 pixels or so: the first are tiles
      for (let k = 0; k < turns; k++) await page.mouse.wheel(0, -450);
      if (turns === 30) await isDisabled(page, "Zoom in");
      await page.mouse.move(x + 301, y + 301);
      await still(page);
      await page.mouse.move(x + width + 5, y - 5);
      await page.evaluate(() => new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve))));
      const points = Array.from({ length: 60 }, (_, k) => [90 + 13 * k, 60 + 7 * k]);
      const drawn = await canvas(page).evaluate((each, all) => {
        const copy = new OffscreenCanvas(each.width, each.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(each, 0, 0);
        return all.map(([px, py]) => [...copy.getImageData(px - 1, py - 1, 3, 3).data].filter((_, k) => k % 4 < 3));
      }, points);
      let compared = 0;
      for (const [k, [px, py]] of points.entries()) {
        const near = drawn[k];
        if (near.some((each, at) => each !== near[at % 3])) continue; // an edge, or a letter
        await page.mouse.move(x + px, y + py);
        const found = /^(\d+) × (\d+): [\d.E-]+$/.exec(await textOf(readout(page)));
        if (!found) continue;
        const share = value(+found[1], +found[2]);
        for (const side of [0, 1, 2]) assert.ok(Math.abs(near[side] - (well[side] + (glow[side] - well[side]) * share)) <= 2, `${found[0]} is ${near.slice(0, 3)}`);
        compared++;
      }
      assert.ok(compared >= 20, `${compared} cells`);
    }
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
    await cell(page).locator('button:enabled[aria-label="Show all"]').waitFor();
    await close();
  },

  async "in an oblong map a lone peak glows from afar, and every cell can be reached"() {
    const peaks = [[0, 0], [31, 32_767], [32, 32_768], [17, 50_001], [63, 99_999]];
    for (const turn of [(each) => each, ([first, second]) => [second, first]]) {
      const shape = turn([64, 100_000]);
      const dark = await mapped(shape, { peaks: peaks.map(turn) });
      const missed = await canvas(dark.page).evaluate((each, { shape: [rows, columns], peaks }) => {
        const { scaleX, scaleY } = window.map.view;
        const [left, top] = [each.width - columns * scaleX, each.height - rows * scaleY];
        const copy = new OffscreenCanvas(each.width, each.height).getContext("2d", { willReadFrequently: true });
        copy.drawImage(each, 0, 0);
        return peaks.filter(([row, column]) => {
          const near = copy.getImageData(left + column * scaleX - 2, top + row * scaleY - 2, scaleX + 4, scaleY + 4).data;
          return !near.some((red, k) => k % 4 === 0 && red === 69 && near[k + 1] === 193 && near[k + 2] === 189);
        });
      }, { shape, peaks: peaks.map(turn) });
      assert.deepEqual(missed, []);
      await dark.close();

      const { page, close } = await mapped(shape);
      const { x, y, width, height } = await canvas(page).boundingBox();
      const middle = [Math.round(width / 2), Math.round(height / 2)];
      const afar = await readAt(page, ...middle);
      isRight(afar, shape);
      assert.match(afar, /at most/);
      for (let k = 0; k < 40; k++) await page.mouse.wheel(0, -300);
      await isDisabled(page, "Zoom in");
      const here = await readAt(page, middle[0] + 1, middle[1]);
      const [row, column] = isRight(here, shape);
      assert.doesNotMatch(here, /at most/);
      await page.mouse.down();
      await page.mouse.move(x + middle[0] + 1 - 128, y + middle[1] - 64, { steps: 4 });
      await page.mouse.up();
      assert.deepEqual(isRight(await readAt(page, middle[0] + 2, middle[1]), shape), [row + 1, column + 2]); // cells of 64 pixels
      await cell(page).locator(".window").focus();
      await page.mouse.move(1, 1);
      await press(page, "Shift+ArrowRight");
      await press(page, "Shift+ArrowDown");
      assert.deepEqual(isRight(await textOf(readout(page)), shape), [row + 11, column + 12]);
      await cell(page).getByRole("button", { name: "Show all" }).click();
      await still(page);
      assert.equal(await readAt(page, ...middle), afar);
      await cell(page).locator(".window").focus();
      await page.mouse.move(1, 1);
      await press(page, "Shift+ArrowUp", 25);
      await press(page, "Shift+ArrowLeft", 25);
      await press(page, "+", 12); // about the block in the corner, which stays in view
      const [down, along] = isRight(await textOf(readout(page)), shape);
      const seen = await page.evaluate(() => window.map.view.seen);
      assert.ok(seen.top <= down && down < seen.bottom && seen.left <= along && along < seen.right, JSON.stringify([down, along, seen]));
      await close();
    }
  },

  async "numbers are read out before the overview knows them"() {
    const { page, close } = await mapped([1013, 757], { held: true });
    const { width, height } = await canvas(page).boundingBox();
    const read = [];
    for (const share of [0.3, 0.6, 0.97]) read.push(await readAt(page, 0.3 * width, share * height));
    assert.ok(await page.evaluate(() => !window.map.pyramid.complete));
    for (const each of read) isRight(each, [1013, 757]);
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
    assert.equal(await textOf(tiles.locator(".cell-readout")), "me × two: 0.5");
    await named.close();
  },

  async "nothing is wider than a phone, and axe finds nothing serious, in light and dark"() {
    for (const style of ["", "body { background: #111; color: #eee }"]) {
      const { page, close } = await opened(["translator", "counted", "named"], { viewport: { width: 320, height: 640 } }, style);
      for (const details of await page.locator("details").all()) await details.evaluate((each) => (each.open = true));
      await cell(page, 1).locator("tbody tr").first().waitFor();
      assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 320);
      // A notebook has headings of its own.
      assert.deepEqual(await serious(page, "main", ["page-has-heading-one"]), []);
      await close();
    }
  },
};

await run(browser, scenarios, only);
