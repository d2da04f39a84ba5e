// Pages of attention on images and along times in a real browser, with the network cut off, as a reader uses them.
//   node places.mjs FOLDER CHROMIUM [NAME …]      prints {name: null, or what went wrong}
// FOLDER: vit, pooled, rows, text, written, tiles, times and difference, each .html and .json (its weights); tests/translation/test_places_browser.py makes them.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { launch, opened as open, reach, run, saved, says, serious, textOf } from "./opened.mjs";

const [folder, executablePath, ...only] = process.argv.slice(2);
const browser = await launch(executablePath);
const opened = async (name, hash = "", options = {}) => {
  const shown = await open(browser, `${pathToFileURL(`${folder}/${name}.html`).href}${hash}`, options);
  await shown.page.waitForFunction(() => /%/.test(document.querySelector(".views .says")?.textContent ?? ""));
  return shown;
};
const weightsOf = async (name) => JSON.parse(await readFile(`${folder}/${name}.json`)).layers;
const head = (page, layer, k) => page.getByRole("button", { name: `Layer ${layer}, head ${k}` }).click();
const told = (page) => page.locator(".says");
const picture = (page, k = 0) => page.locator("canvas.patches").nth(k);
const choice = (page, group, name) => page.getByRole("group", { name: group, exact: true }).getByRole("button", { name, exact: true });
const press = async (page, name) => {
  await page.locator(".titled summary").click();
  return saved(page, page.locator(".titled").getByRole("button", { name }));
};
const table = (csv) => csv.toString().split("\n").slice(1).map((row) => row.split(",")).map(([layer, own, query, key, weight]) => [layer, own, query, key].map(Number).concat(Number(weight)));
const close_ = (one, other) => Math.abs(one - other) <= 0.006 * Math.abs(other) + 1e-9; // three digits
const sum = (row) => row.reduce((total, each) => total + each, 0);
const shares = (weight) => `${(100 * weight).toFixed(weight < 0.001 ? 3 : weight < 0.01 ? 2 : 1)}%`;
/** Where a patch is, as an offset in its picture. */
const at = async (canvas, [row, column], [rows, columns]) => {
  const { width, height } = await canvas.boundingBox();
  return { x: ((column + 0.5) / columns) * width, y: ((row + 0.5) / rows) * height };
};
/** Red, green and blue at points of a canvas, in shares of its sides. */
const colours = (canvas, points) => canvas.evaluate((each, all) => {
  const copy = new OffscreenCanvas(each.width, each.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(each, 0, 0);
  return all.map(([x, y]) => [...copy.getImageData(Math.floor(x * each.width), Math.floor(y * each.height), 1, 1).data].slice(0, 3));
}, points);
const centres = (rows, columns) => Array.from({ length: rows * columns }, (_, k) => [((k % columns) + 0.32) / columns, (Math.floor(k / columns) + 0.4) / rows]);
const light = ([red, green, blue]) => 0.2126 * red ** 2.2 + 0.7152 * green ** 2.2 + 0.0722 * blue ** 2.2;
const set = (page, name, value) => page.getByRole("slider", { name }).evaluate((each, to) => {
  each.value = to;
  each.dispatchEvent(new Event("input", { bubbles: true }));
}, value);
const name = (k, columns = 7) => `row ${Math.floor(k / columns) + 1}, column ${(k % columns) + 1}`;

const scenarios = {
  async "the colour under a pixel is that of its patch: the larger the weight, the lighter"() {
    const { page, close } = await opened("vit");
    const [[, row]] = [await weightsOf("vit")].map((layers) => [0, layers[1][2][0].slice(2)]);
    await head(page, 1, 2);
    await page.getByRole("checkbox", { name: "Outline" }).uncheck();
    const seen = (await colours(picture(page), centres(5, 7))).map(light);
    for (const [k, weight] of row.entries()) for (const [j, other] of row.entries()) if (weight < 0.97 * other) assert.ok(seen[k] < seen[j] + 1, `${k} ${j}`);
    assert.ok(Math.max(...seen) > 30 * Math.min(...seen));
    await close();
  },

  async "numbers of the legend are the ends of the scale"() {
    const { page, close } = await opened("vit");
    const row = (await weightsOf("vit"))[1][2][0].slice(2);
    await head(page, 1, 2);
    const legend = await page.locator(".band span").allTextContents();
    assert.deepEqual([legend.length, legend[0], legend[4]], [5, "0.0%", shares(Math.max(...row))]);
    assert.equal(await page.locator(".band b").getAttribute("title"), "Uniform weight: 2.70%"); // of 37 keys
    await set(page, "Contrast", 1);
    assert.ok(parseFloat(await page.locator(".band span").nth(1).textContent()) > 1.5 * parseFloat(legend[1]));
    await close();
  },

  async "a patch that is pointed at tells its keys, or its queries; and the class token is first"() {
    const { page, close } = await opened("vit");
    const weights = (await weightsOf("vit"))[1][2];
    await head(page, 1, 2);
    const most = (values) => [...values.keys()].sort((one, other) => values[other] - values[one]).slice(0, 5)
      .map((k) => `${["[CLS]", "<register>"][k] ?? name(k - 2)} (${shares(values[k])})`).join(" · ");
    await says(told(page), `[CLS] looks at: ${most(weights[0])}`);
    await picture(page).hover({ position: await at(picture(page), [3, 4], [5, 7]) });
    const patch = 2 + 3 * 7 + 4;
    await says(told(page), `row 4, column 5 looks at: ${most(weights[patch])}`);
    await page.mouse.move(2, 2);
    await says(told(page), `[CLS] looks at: ${most(weights[0])}`);
    await choice(page, "Show", "what looks at it").click();
    await picture(page).hover({ position: await at(picture(page), [3, 4], [5, 7]) });
    await says(told(page), `Looking at row 4, column 5: ${most(weights.map((row) => row[patch]))}`);
    await page.getByRole("button", { name: "mean of all queries" }).click();
    await page.mouse.move(2, 2);
    await says(told(page), `The queries look, on average, at: ${most(weights[0].map((_, key) => sum(weights.map((row) => row[key])) / 37))}`);
    await close();
  },

  async "the keyboard alone moves over patches and words, and keeps one"() {
    const { page, close } = await opened("vit");
    await reach(page, "canvas.patches");
    await page.keyboard.press("ArrowDown");
    assert.match(await textOf(told(page)), /^row 2, column 1 looks at/);
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("ArrowUp");
    await page.keyboard.press("ArrowUp");
    assert.match(await textOf(told(page)), /^row 1, column 2 looks at/);
    await page.keyboard.press("Enter");
    assert.equal(await page.locator("input[type=number]").first().inputValue(), "3");
    await reach(page, ".words button");
    assert.match(await textOf(told(page)), /^row 1, column 2 looks at/);
    await reach(page, ".words button:not(:first-child)");
    assert.match(await textOf(told(page)), /^\[CLS\] looks at/);
    await page.keyboard.press("ArrowRight");
    assert.match(await textOf(told(page)), /^<register> looks at/);
    await page.keyboard.press("Enter");
    assert.equal(await page.locator("input[type=number]").first().inputValue(), "1");
    await close();
  },

  async "a finger keeps a patch"() {
    const { page, close } = await opened("vit", "", { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
    await picture(page).tap({ position: await at(picture(page), [4, 6], [5, 7]) });
    await page.waitForFunction(() => /row 5, column 7 looks at/.test(document.querySelector(".says").textContent));
    assert.equal(await page.locator("input[type=number]").first().inputValue(), "36");
    await close();
  },

  async "the table has the numbers of the map that is shown"() {
    const { page, close } = await opened("vit");
    const weights = (await weightsOf("vit"))[1];
    await head(page, 1, 2);
    await page.getByRole("button", { name: "Several heads" }).click();
    await page.locator(".chip").nth(0).click();
    await picture(page).click({ position: await at(picture(page), [0, 3], [5, 7]) });
    const [file, csv] = await press(page, "CSV");
    assert.match(file, /^layer-1-head-(2-0|0-2)\.csv$/);
    const rows = table(csv);
    assert.equal(rows.length, 2 * 37);
    for (const [layer, k, query, key, weight] of rows) assert.ok(layer === 1 && query === 5 && close_(weight, weights[k][5][key]), `${k} ${key}`);
    await close();
  },

  async "the table and the pair have the positions of the sequence"() {
    const { page, close } = await opened("ordered");
    const [[weights]] = await weightsOf("ordered");
    const positions = [2, 3, 1, 5, 4, 0];
    await picture(page).click({ position: await at(picture(page), [1, 0], [2, 3]) });
    const [, csv] = await press(page, "CSV");
    const rows = table(csv);
    assert.deepEqual(rows.map(([, , query]) => query), Array(6).fill(5));
    assert.deepEqual(rows.map(([, , , key]) => key), positions);
    for (const [k, row] of rows.entries()) assert.ok(close_(row[4], weights[3][k]), `${k}`);
    const [query, key] = [0, 1].map((k) => page.locator("input[type=number]").nth(k));
    assert.equal(await query.inputValue(), "5");
    await key.fill("3");
    await key.press("Tab");
    assert.match(await textOf(page.locator(".pairs tbody")), new RegExp(shares(weights[3][1])));
    await close();
  },

  async "sinks are marked, and hidden with the other weights rescaled"() {
    const { page, close } = await opened("vit");
    const weights = (await weightsOf("vit"))[0][0];
    const sink = 2 + 12;
    await head(page, 0, 0);
    assert.match(await textOf(page.locator(".strength p")), /× marks sinks/);
    await page.getByRole("checkbox", { name: "Hide sinks" }).check();
    assert.match(await textOf(page.locator(".strength p")), /Sinks are hidden \(1\)/);
    const [file, csv] = await press(page, "CSV");
    assert.equal(file, "layer-0-head-0-without-sinks.csv");
    const rows = table(csv);
    for (const [, , , key, weight] of rows) assert.ok(close_(weight, key === sink ? 0 : weights[0][key] / (sum(weights[0]) - weights[0][sink])), `${key} ${weight}`);
    assert.ok(Math.abs(sum(rows.map((row) => row[4])) - 1) < 0.003);
    await choice(page, "Show", "what looks at it").click();
    await picture(page).hover({ position: await at(picture(page), [1, 5], [5, 7]) });
    await says(told(page), "Looking at row 2, column 6: —");
    await head(page, 1, 1);
    assert.doesNotMatch(await textOf(page.locator(".strength p")), /inks/);
    await close();
  },

  async "small maps are of the kept query, and one that is clicked is shown"() {
    const { page, close } = await opened("vit");
    const weights = await weightsOf("vit");
    await page.locator(".thumb canvas.mapped").nth(5).waitFor();
    const brightest = async (thumb) => {
      const canvas = page.locator(".thumb canvas").nth(thumb);
      const points = centres(5, 7).map(([x, y]) => [x, (7 - 5) / 14 + (y * 5) / 7]);
      const seen = (await colours(canvas, points)).map(light);
      return seen.indexOf(Math.max(...seen));
    };
    const best = (row) => row.slice(2).indexOf(Math.max(...row.slice(2)));
    assert.equal(await brightest(4), best(weights[1][1][0]));
    await picture(page).click({ position: await at(picture(page), [4, 0], [5, 7]) });
    const ofThePatch = best(weights[1][1][2 + 28]);
    for (let tries = 0; tries < 100 && (await brightest(4)) !== ofThePatch; tries++) await page.waitForTimeout(100);
    assert.equal(await brightest(4), ofThePatch);
    await page.getByRole("combobox", { name: "Order" }).selectOption("evenly");
    assert.equal(await page.locator(".heads.sorted .thumb canvas.mapped").count(), 6);
    await close();
  },

  async "the original has the frame of what the model saw"() {
    const { page, close } = await opened("vit");
    const [frame, image] = await Promise.all(["span", "img"].map((each) => page.locator(`.original ${each}`).boundingBox()));
    for (const [one, other] of [[frame.x - image.x, image.width / 9], [frame.width, (7 * image.width) / 9], [frame.height, image.height]]) assert.ok(Math.abs(one - other) < 1.5);
    await close();
  },

  async "saved pictures name the neutral prompt"() {
    const { page, close } = await opened("tiles");
    const [, svg] = await press(page, "SVG");
    assert.match(svg.toString(), /<text[^>]* y="32"[^>]*>divided by the weights for 'is the'<\/text>/);
    await close();
  },

  async "pictures are saved with the image"() {
    const { page, close } = await opened("vit");
    await head(page, 1, 2);
    await page.getByRole("button", { name: "mean of all queries" }).click();
    const [file, svg] = await press(page, "SVG");
    assert.equal(file, "layer-1-head-2.svg");
    assert.match(svg.toString(), /<image[^>]*href="data:image\/png;base64,/);
  assert.equal(svg.toString().match(/<rect/g).length, 1 + 35 + 49); // the ground, the patches, the scale
    const [, png] = await press(page, "PNG");
    const lightest = await page.evaluate(async (bytes) => {
      const image = await createImageBitmap(new Blob([Uint8Array.from(bytes)]));
      const brush = new OffscreenCanvas(image.width, image.height).getContext("2d");
      brush.drawImage(image, 0, 0);
      const data = brush.getImageData(0, 60, image.width, image.height - 200).data;
      let dark = 0;
      for (let k = 0; k < data.length; k += 4) if (data[k] + data[k + 1] + data[k + 2] < 300) dark++;
      return [image.width, dark / (data.length / 4)];
    }, [...png]);
    await page.evaluate(() => (window.print = () => {}));
    await page.locator(".titled summary").click();
    await page.locator(".titled").getByRole("button", { name: "PDF" }).click();
    assert.equal(await page.locator(".sheet image").count(), 1);
    await page.evaluate(() => dispatchEvent(new Event("afterprint")));
    assert.equal(lightest[0], 1440);
    assert.ok(lightest[1] > 0.5, `${lightest[1]} of the picture is dark`); // the image is black
    await close();
  },

  async "a word shows its region, and a region the words that look at it"() {
    const { page, close } = await opened("text");
    const weights = (await weightsOf("text"))[1][1];
    await head(page, 1, 1);
    const word = (text) => page.locator(".words").getByRole("button", { name: text, exact: true });
    assert.match(await textOf(told(page)), /^\? looks at/);
    await page.getByRole("checkbox", { name: "Outline" }).uncheck();
    await word("table").hover();
    const table_ = 2 + 12 + 6 - 1;
    const row = weights[table_].slice(2, 14);
    const seen = (await colours(picture(page), centres(3, 4))).map(light);
    assert.equal(seen.indexOf(Math.max(...seen)), row.indexOf(Math.max(...row)));
    await picture(page).hover({ position: await at(picture(page), [1, 2], [3, 4]) });
    assert.match(await textOf(told(page)), /^Looking at row 2, column 3/);
    const column = weights.map((each) => each[2 + 6]);
    const tints = await page.locator(".words button[dir]").evaluateAll((all) => all.map((each) => [each.textContent.replace(" ×", ""), Number(each.style.getPropertyValue("--weight"))]));
    const strongest = tints.toSorted((one, other) => other[1] - one[1])[0][0];
    const after = [..."what is on the small table today ?".split(" ").entries()].map(([k, text]) => [text, column[14 + k]]);
    assert.equal(strongest, after.toSorted((one, other) => other[1] - one[1])[0][0]);
    assert.equal(tints[0][1], 0, "words before the image do not see it");
    await close();
  },

  async "written words are queries of several images, each with its map"() {
    const { page, close } = await opened("written");
    const weights = (await weightsOf("written"))[0][1];
    await head(page, 0, 1);
    assert.equal(await page.locator("canvas.patches").count(), 2);
    assert.deepEqual(await page.locator(".words h3").allTextContents(), ["Queries", "Keys"]);
    await page.getByRole("checkbox", { name: "Outline" }).uncheck();
    await page.getByRole("button", { name: "w4", exact: true }).hover();
    const seen = (await colours(picture(page, 1), centres(2, 2))).map(light);
    const row = weights[4].slice(14, 18);
    assert.deepEqual([...seen.keys()].sort((one, other) => seen[one] - seen[other]), [...row.keys()].sort((one, other) => row[one] - row[other]));
    await picture(page, 1).hover({ position: await at(picture(page, 1), [1, 0], [2, 2]) });
    const column = weights.map((each) => each[16]);
    const best = column.indexOf(Math.max(...column));
    assert.ok((await textOf(told(page))).startsWith(`Looking at image 2, row 2, column 1: w${best} (${shares(column[best])})`), await textOf(told(page)));
    const tints = await page.locator(".words").first().locator("button[dir]").evaluateAll((all) => all.map((each) => Number(each.style.getPropertyValue("--weight"))));
    assert.equal(tints.indexOf(Math.max(...tints)), best);
    await close();
  },

  async "tiles lie on one image, and arrow keys cross their edges"() {
    const { page, close } = await opened("tiles");
    assert.equal(await page.locator("canvas.patches").count(), 1);
    await picture(page).hover({ position: await at(picture(page), [3, 4], [4, 6]) });
    assert.match(await textOf(told(page)), /^image 4, row 2, column 2 looks at/);
    const weights = (await weightsOf("tiles"))[0][0];
    await page.getByRole("checkbox", { name: "Outline" }).uncheck();
    await page.mouse.move(2, 2);
    const row = weights[0].slice(1);
    const order = [[0, 1], [0, 1]].length && centres(4, 6).map((_, k) => {
      const [y, x] = [Math.floor(k / 6), k % 6];
      return row[(2 * Math.floor(y / 2) + Math.floor(x / 3)) * 6 + (y % 2) * 3 + (x % 3)];
    });
    const seen = (await colours(picture(page), centres(4, 6))).map(light);
    assert.equal(seen.indexOf(Math.max(...seen)), order.indexOf(Math.max(...order)));
    await picture(page).focus();
    await page.keyboard.press("Tab");
    await page.keyboard.press("Shift+Tab");
    for (const key of ["ArrowRight", "ArrowRight", "ArrowRight"]) await page.keyboard.press(key);
    assert.match(await textOf(told(page)), /^image 2, row 1, column 1 looks at/);
    for (const key of ["ArrowDown", "ArrowDown"]) await page.keyboard.press(key);
    assert.match(await textOf(told(page)), /^image 4, row 1, column 1 looks at/);
    await close();
  },

  async "a block of an image covers several rows, with separators between them"() {
    const { page, close } = await opened("rows");
    const weights = (await weightsOf("rows"))[0][1];
    await head(page, 0, 1);
    await picture(page).click({ position: await at(picture(page), [3, 3], [5, 7]) });
    assert.match(await textOf(told(page)), /^row 4, column 4 looks at/);
    const place = (position) => [Math.floor((position - 1) / 8), (position - 1) % 8]; // 7 patches and a separator
    const block = (k) => {
      const [row, column] = place(k);
      const isPatch = (position) => position > 0 && position < 41 && place(position)[1] < 7;
      return !isPatch(k) ? [k] : [...weights.keys()].filter((other) => isPatch(other) && place(other)[0] >> 1 === row >> 1 && place(other)[1] >> 1 === column >> 1);
    };
    const query = 1 + 3 * 8 + 3;
    assert.deepEqual(block(query), [query - 9, query - 8, query - 1, query]);
    for (const [, , own, key, weight] of table((await press(page, "CSV"))[1])) {
      const [from, to] = [block(query), block(key)];
      const mean = sum(from.flatMap((i) => to.map((j) => weights[i][j]))) / (from.length * to.length);
      assert.ok(own === query && Math.abs(weight / mean - 1) < 0.06, `${key} ${weight} ${mean}`);
    }
    await close();
  },

  async "a large image: the class token is exact, and a patch is the mean of its block"() {
    const { page, close } = await opened("pooled");
    const weights = (await weightsOf("pooled"))[1][2];
    await head(page, 1, 2);
    for (const [, , , key, weight] of table((await press(page, "CSV"))[1])) assert.ok(close_(weight, weights[0][key]), `${key}`);
    await picture(page).click({ position: await at(picture(page), [3, 6], [5, 7]) });
    assert.match(await textOf(page.locator(".strength p")), /mean of a block of 2 × 2 patches/);
    const block = (k) => [...weights.keys()].filter((other) => other === k || (k > 0 && k < 36 && other > 0 && other < 36 && [7, 1].every((per, side) => {
      const place = (position) => Math.floor((side ? (position - 1) % 7 : Math.floor((position - 1) / 7)) / 2);
      return place(k) === place(other) && per;
    })));
    const query = 1 + 3 * 7 + 6;
    assert.deepEqual(block(query), [1 + 2 * 7 + 6, query]);
    for (const [, , , key, weight] of table((await press(page, "CSV"))[1])) {
      const [from, to] = [block(query), block(key)];
      const mean = sum(from.flatMap((i) => to.map((j) => weights[i][j]))) / (from.length * to.length);
      assert.ok(Math.abs(weight / mean - 1) < 0.06, `${key} ${weight} ${mean}`); // a code has 3 %, and so have the expected weights
    }
    await page.locator("input[type=number]").nth(1).fill("36");
    await page.keyboard.press("Tab");
    const cell = await page.locator("table.pairs tbody tr").nth(1).locator("td").nth(2).textContent();
    const pair = sum(block(query).map((i) => weights[i][36])) / 2;
    assert.ok(Math.abs(parseFloat(cell) / (100 * pair) - 1) < 0.06 || Math.abs(parseFloat(cell) - 100 * pair) < 0.06, `${cell} ${pair}`);
    await close();
  },

  async "a series has its weights below, and a time tells its own"() {
    const { page, close } = await opened("times");
    const weights = (await weightsOf("times"))[1][0];
    await head(page, 1, 0);
    assert.match(await textOf(told(page)), /^time 16 looks at/);
    const bars = await page.locator(".series .bar").evaluateAll((all) => all.map((each) => each.height.baseVal.value));
    const tallest = Math.max(...bars);
    bars.forEach((bar, k) => assert.ok(Math.abs(bar / tallest - weights[12][k] / Math.max(...weights[12])) < 0.01));
    const { width } = await page.locator("div.series").boundingBox();
    await page.locator("div.series").hover({ position: { x: 52 + (width - 52) * (4.5 / 17), y: 60 } }); // from −0.5 to 16.5
    assert.match(await textOf(told(page)), /^time 4 looks at/);
    await page.mouse.move(2, 2);
    await reach(page, "div.series");
    await page.keyboard.press("Home");
    await page.keyboard.press("ArrowRight");
    await page.keyboard.press("Enter");
    assert.equal(await page.locator("input[type=number]").first().inputValue(), "1");
    const [, svg] = await press(page, "SVG");
    assert.match(svg.toString(), /<path[^>]*d="M/);
    await close();
  },

  async "a difference of two runs is blue and orange, without an image too"() {
    const { page, close } = await opened("difference");
    await page.getByRole("checkbox", { name: "Outline" }).uncheck();
    const seen = await colours(picture(page), centres(2, 3));
    assert.ok(seen[0][2] > seen[0][0] + 60 && seen[5][0] > seen[5][2] + 30, JSON.stringify(seen));
    assert.ok(Math.abs(seen[2][0] - seen[2][2]) < 3);
    await says(told(page), "[CLS] looks at: row 1, column 1 (+50.0%) · row 2, column 3 (-25.0%)");
    assert.equal(await page.getByRole("checkbox", { name: "Hide sinks" }).count(), 0);
    assert.equal(await textOf(page.locator(".strength p")), "Only the largest weights of each query are known.");
    await close();
  },

  async "three languages, light and dark: nothing is wider than a phone, and axe finds nothing serious"() {
    for (const name of ["vit", "text", "written", "times"]) {
      for (const [lang, theme] of [["en", "light"], ["tr", "dark"], ["zh", "light"]]) {
        const { page, close } = await opened(name, `#lang=${lang}&theme=${theme}`, { viewport: { width: 320, height: 640 } });
        assert.ok((await page.evaluate(() => document.documentElement.scrollWidth)) <= 320, `${name} ${lang}`);
        assert.doesNotMatch(await page.locator("main").textContent(), /undefined|NaN|Infinity/);
        assert.deepEqual(await serious(page), [], `${name} ${lang} ${theme}`);
        await close();
      }
    }
  },
};

await run(browser, scenarios, only);
