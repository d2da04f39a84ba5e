// Pages of sentences and of calls in a real browser, with the network cut off, as a reader uses them.
//   node pages.mjs FOLDER CHROMIUM [NAME …]      prints {name: null, or what went wrong}
// FOLDER: compared.html, epochs.html, sentences.html, alive.html (with the model), calls.html, looks.html, long.html, mixed.html, batch.html, difference.html, effects.html, estimates.html, read.html; tests/translation/test_pages_browser.py makes them.
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";
import { addressOf, launch, opened as open, reach, run, saved, says, serious } from "./opened.mjs";

const [folder, executablePath, ...only] = process.argv.slice(2);
const browser = await launch(executablePath);
const opened = async (name, hash = "", options = {}) => {
  const found = await open(browser, `${pathToFileURL(`${folder}/${name}.html`).href}${hash}`, options);
  await found.page.locator(options.javaScriptEnabled === false ? "main" : "main .links, main canvas, main .read-bar").first().waitFor();
  return found;
};
const sentence = (page, number) => page.locator(".sentence").nth(number - 1);
/** A button of one of the first sentence's menus, opened. */
const inMenu = async (page, k, name) => {
  await sentence(page, 1).locator(".menu summary").nth(k).click();
  return sentence(page, 1).getByRole("button", { name });
};
const word = (page, number, k, side = "written") => sentence(page, number).locator(`.links .${side}`).nth(k);
const readout = (page) => page.locator(".readout");
const pressed = (page) => page.locator('.links [aria-pressed="true"] text').allTextContents();
const wide = (page) => page.evaluate(() => document.documentElement.scrollWidth);
const token = (page, side, k) => page.locator(`.tokens.${side ? "to" : "from"} button`).nth(k);
const active = (page) => page.evaluate(() => document.activeElement.textContent);
/** Whether the number of a token's row is in the part of the lists that is in view. */
const inSight = (page, side, k) => token(page, side, k).evaluate((each) => {
  const [own, box] = [each, each.closest(".columns")].map((element) => element.getBoundingClientRect());
  return own.top >= box.top && own.bottom <= box.bottom;
});
/** Points of the canvas of lines that are painted. */
const ink = (page) => page.locator(".stage canvas").evaluate((each) => {
  const copy = new OffscreenCanvas(each.width, each.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(each, 0, 0);
  return copy.getImageData(0, 0, each.width, each.height).data.filter((value, k) => k % 4 === 3 && value > 0).length;
});
/** Differences between the brightest and the darkest point of what is on the screen. */
const contrast = async (page, place) => page.evaluate(async (bytes) => {
  const image = await createImageBitmap(new Blob([Uint8Array.from(bytes)]));
  const context = new OffscreenCanvas(image.width, image.height).getContext("2d");
  context.drawImage(image, 0, 0);
  const { data } = context.getImageData(0, 0, image.width, image.height);
  const green = data.filter((_, k) => k % 4 === 1);
  return green.reduce((most, each) => Math.max(most, each)) - green.reduce((least, each) => Math.min(least, each));
}, [...await place.screenshot()]);
const unfold = async (page) => {
  for (const details of await page.locator("details").all()) await details.evaluate((each) => (each.open = true));
};

const scenarios = {
  async "a slider moves through the epochs, and words that differ are marked"() {
    const { page, close } = await opened("compared");
    const slider = page.getByRole("slider", { name: "model" });
    const marked = () => page.locator(".sides mark").allTextContents();
    assert.equal(await slider.getAttribute("aria-valuetext"), "epoch 1");
    assert.deepEqual(await marked(), ["est", "parti"]);
    await slider.press("ArrowRight");
    assert.equal(await slider.getAttribute("aria-valuetext"), "epoch 2");
    assert.deepEqual(await marked(), ["chat", "homme"]);
    await says(page.locator("#differing"), "different translations: 1 of 1");
    assert.deepEqual(await page.locator(".sides h3").allTextContents(), ["model · epoch 2", "model"]);
    assert.equal(await page.locator(".sides > div").first().locator(".links .written").count(), 4);
    await slider.press("End");
    assert.deepEqual(await marked(), []);
    await says(page.locator("#differing"), "different translations: 0 of 1");
    await page.locator(".sides > div").nth(1).locator(".links .written").nth(1).hover();
    await says(readout(page), "“homme” looked at: a 33.3%, man 33.3%, left 33.3%");
    assert.deepEqual(await serious(page), []);
    await page.setViewportSize({ width: 390, height: 800 });
    await page.waitForFunction(() => document.querySelector(".sides").children[1].offsetTop > document.querySelector(".sides").children[0].offsetTop);
    assert.ok(await wide(page) <= 390);
    await close();
  },

  async "a slider redraws only the sentences near the window"() {
    const { page, close } = await opened("epochs");
    for (let k = 0; k < 47; k += 2) {
      await page.locator(".sentence").nth(k).scrollIntoViewIfNeeded();
      await page.locator(".sentence").nth(k).locator("svg.links").first().waitFor();
    }
    const pictures = page.locator("svg.links");
    await page.evaluate(() => window.scrollTo(0, document.body.scrollHeight));
    await page.locator(".sentence").nth(46).locator("svg.links").first().waitFor();
    assert.equal(await pictures.count(), 2 * 47);
    await page.waitForFunction(() => document.querySelector(".sentence").getBoundingClientRect().bottom < -2000);
    await page.evaluate(() => document.querySelectorAll("svg.links").forEach((picture) => (picture.dataset.epoch = "1")));
    const slider = page.getByRole("slider", { name: "model" });
    await slider.evaluate((input) => {
      input.value = 1;
      input.dispatchEvent(new Event("input"));
    });
    const stale = await page.locator("svg.links[data-epoch]").count();
    assert.ok(stale >= 47 + 20, `${stale} of ${2 * 47} pictures are as before`); // those of the other side do not change
    assert.ok(stale <= 2 * 47 - 2, "the last sentence is redrawn");
    assert.equal(await page.locator(".sentence").last().locator(".target").first().textContent(), "un chat est parti");
    await page.evaluate(() => window.scrollTo(0, 0));
    await page.waitForFunction(() => document.querySelector(".sentence .target").textContent === "un chat est parti");
    assert.equal(await page.locator(".sentence").first().locator(".links .written").count(), 4 + 4);
    await close();
  },

  async "pictures are drawn as their sentences come near"() {
    const { page, close } = await opened("sentences");
    assert.equal(await page.locator(".sentence").count(), 40);
    const before = await page.locator(".links").count();
    assert.ok(before > 1 && before < 30, `${before} drawn`);
    assert.equal(await page.locator(".map, .sentence table").count(), 0);
    await sentence(page, 40).evaluate((each) => each.scrollIntoView());
    await sentence(page, 40).locator(".links").waitFor();
    assert.equal(await word(page, 40, 0).locator("text").textContent(), "t40");
    await close();
  },

  async "the pointer reads out what a word looked at, and what looked at it"() {
    const { page, close } = await opened("sentences");
    await word(page, 1, 1).hover();
    await says(readout(page), "“black” looked at: chat 62.5%, noir 37.3%");
    assert.equal(await sentence(page, 1).locator(".link.strong").count(), 2);
    await word(page, 1, 0, "read").hover();
    await says(readout(page), "“le” was looked at by: the 100.0%, cat 25.0%");
    await page.mouse.move(2, 2);
    await says(readout(page), "");
    await sentence(page, 1).locator("details:not(.menu) > summary").click();
    await sentence(page, 1).locator(".map .empty").nth(5).hover();
    await says(readout(page), "“black” looked at “noir”: 37.3%");
    await close();
  },

  async "a word that is clicked is kept, in the address too, until Escape or another click"() {
    const { page, close } = await opened("sentences");
    await word(page, 2, 0).click();
    assert.deepEqual(await pressed(page), ["t2"]);
    assert.match(await addressOf(page), /#s=2\.t1$/);
    await page.mouse.move(2, 2);
    await says(readout(page), "“t2” looked at: a 100.0%");
    await page.reload();
    await page.locator('.links [aria-pressed="true"]').waitFor();
    assert.deepEqual(await pressed(page), ["t2"]);
    await page.keyboard.press("Tab");
    await word(page, 2, 0).focus();
    await page.keyboard.press("Escape");
    assert.deepEqual(await pressed(page), []);
    assert.ok(!(await addressOf(page)).includes("s=2"));
    await word(page, 1, 0, "read").click();
    assert.match(await addressOf(page), /s=1\.s1$/);
    await word(page, 1, 0, "read").click();
    assert.ok(!(await addressOf(page)).includes("s=1"));
    await close();
  },

  async "an address opens far down, and one that is nonsense does no harm"() {
    const { page, close } = await opened("sentences", "#s=37.t1");
    await page.locator('.links [aria-pressed="true"]').waitFor();
    assert.deepEqual(await pressed(page), ["t37"]);
    await page.waitForFunction(() => {
      const { top, bottom } = document.querySelector(".sentence.kept").getBoundingClientRect();
      return top >= 0 && bottom <= innerHeight;
    });
    await close();
    for (const hash of ["#s=0", "#s=999.t1", "#s=2.t99", "#s=2.t1.s99", "#s=x", "#s3.t1", "#room=translate", "#room=calls", "#%%%"]) {
      const other = await opened("sentences", hash);
      assert.deepEqual(await pressed(other.page), [], hash);
      await other.close();
    }
  },

  async "a finger keeps a word"() {
    const { page, close } = await opened("sentences", "", { viewport: { width: 360, height: 740 }, hasTouch: true, isMobile: true });
    await word(page, 1, 1).tap();
    await says(readout(page), "“black” looked at: chat 62.5%, noir 37.3%");
    assert.deepEqual(await pressed(page), ["black"]);
    await close();
  },

  async "the keyboard alone finds, reads, keeps and unfolds"() {
    const { page, close } = await opened("sentences");
    await reach(page, "#find");
    await reach(page, ".links .written");
    await page.keyboard.press("ArrowRight");
    await says(readout(page), "“black” looked at: chat 62.5%, noir 37.3%");
    await page.keyboard.press("ArrowUp");
    await says(readout(page), "“chat” was looked at by: cat 75.0%, black 62.5%");
    await page.keyboard.press("End");
    await says(readout(page), "“noir” was looked at by: black 37.3%");
    await page.keyboard.press("Home");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("Enter");
    assert.deepEqual(await pressed(page), ["the"]);
    await reach(page, "details:not(.menu) > summary");
    await page.keyboard.press("Enter");
    await page.locator(".map").waitFor();
    await reach(page, "svg.map");
    await page.keyboard.press("ArrowDown");
    await page.keyboard.press("ArrowRight");
    await says(readout(page), "“black” looked at “chat”: 62.5%");
    await page.keyboard.press("Enter");
    assert.match(await addressOf(page), /s=1\.t2\.s2$/);
    await close();
  },

  async "every picture has a table of its numbers"() {
    const { page, close } = await opened("sentences");
    await sentence(page, 1).locator("details:not(.menu) > summary").click();
    for (const k of [0, 1]) {
      await (await inMenu(page, k, "Table")).click();
      const rows = await sentence(page, 1).locator("table").nth(k).locator("tr").evaluateAll((all) => all.map((each) => [...each.cells].map((cell) => cell.textContent)));
      assert.deepEqual(rows, [["", "le", "chat", "noir"], ["the", "100.0%", "0.0%", "0.0%"], ["black", "0.2%", "62.5%", "37.3%"], ["cat", "25.0%", "75.0%", "0.0%"]]);
    }
    await close();
  },

  async "sentences are found by their words, whatever the accents"() {
    const { page, close } = await opened("sentences");
    const visible = () => page.locator(".sentence:visible header a").allTextContents();
    await page.locator("#find").fill("CHAT été");
    assert.deepEqual(await visible(), ["1"]);
    await page.locator("#find").fill("ete");
    assert.equal(await page.locator("#count").textContent(), "Sentences: 1 of 40");
    await page.locator("#find").fill("nothing like it");
    assert.deepEqual(await visible(), []);
    assert.ok(await page.getByText("No sentence contains these words.").isVisible());
    await page.locator("#find").fill("");
    assert.equal(await page.locator("#count").textContent(), "Sentences: 40");
    await page.locator("#find").fill("t39");
    await sentence(page, 39).locator(".links").waitFor();
    await close();
  },

  async "pictures and numbers are saved"() {
    const { page, close } = await opened("sentences");
    await sentence(page, 1).locator("details:not(.menu) > summary").click();
    for (const k of [0, 1]) {
      const [name, svg] = await saved(page, await inMenu(page, k, "SVG"));
      assert.equal(name, ["dikkat-1-links.svg", "dikkat-1-map.svg"][k]);
      assert.match(svg.toString(), /^<svg [^>]*xmlns="http:\/\/www.w3.org\/2000\/svg"[\s\S]*black[\s\S]*<\/svg>$/);
      assert.doesNotMatch(svg.toString(), /var\(|class=/);
      const [, png] = await saved(page, await inMenu(page, k, "PNG"));
      assert.deepEqual([...png.subarray(0, 4)], [137, 80, 78, 71]);
    }
    const [, json] = await saved(page, page.getByRole("button", { name: "Everything as JSON" }));
    const { sentences } = JSON.parse(json);
    assert.equal(sentences.length, 40);
    assert.deepEqual(sentences[0], {
      source: "le chat noir, l’été", target: "the black cat", reference: "the dark cat", score: "chrF 64.25",
      source_tokens: ["le", "chat", "noir"], target_tokens: ["the", "black", "cat"], weights: [[1, 0, 0], [0.002, 0.625, 0.373], [0.25, 0.75, 0]],
    });
    await close();
  },

  async "any text is shown as text"() {
    const { page, close } = await opened("sentences", "#s=3.t1");
    await sentence(page, 3).locator(".links").waitFor();
    assert.equal(await page.locator("main script, main img").count(), 0);
    assert.deepEqual(await sentence(page, 3).locator(".links .written text").allTextContents(), ["<script>alert(1)</script>", "a⟨200B⟩b", "⟨202E⟩evil", "�"]);
    const [first, second] = await sentence(page, 3).locator(".links .read rect").evaluateAll((all) => all.map((each) => each.x.baseVal.value));
    assert.ok(first > second, "what is written from the right begins at the right");
    assert.deepEqual(await sentence(page, 3).locator(".links .read text").evaluateAll((all) => all.map((each) => each.getAttribute("lang"))), ["fr", "fr"]);
    await close();
  },

  async "very many weights are a map to move about in"() {
    const { page, close } = await opened("sentences", "#s=4");
    await sentence(page, 4).locator("canvas").waitFor();
    assert.equal(await sentence(page, 4).locator(".links").count(), 0);
    await sentence(page, 4).locator(".window").focus();
    for (let k = 0; k < 12; k++) await page.keyboard.press("+");
    await page.keyboard.press("ArrowDown");
    await says(sentence(page, 4).locator(".cell-readout"), "w1 × v0: 0.01");
    await close();
  },

  async "without JavaScript the texts can be read"() {
    const { page, close } = await opened("sentences", "", { javaScriptEnabled: false });
    assert.ok(await page.getByText("the black cat").isVisible());
    assert.ok(await page.getByText("the dark cat").isVisible());
    assert.ok(await page.getByText("40 sentences").isVisible());
    await close();
    const other = await opened("calls", "", { javaScriptEnabled: false });
    assert.ok(await other.page.getByText("Recorded: rows").first().isVisible());
    await other.close();
  },

  async "three languages, the reader's first; and dark, as chosen or as the system has it"() {
    for (const [name, title, count] of [["sentences", { en: "All weights", tr: "Bütün ağırlıklar", zh: "全部权重" }, "details:not(.menu) > summary"], ["calls", { en: "All calls", tr: "Bütün çağrılar", zh: "全部调用" }, "h2"]]) {
      for (const [locale, language] of [["tr-TR", "tr"], ["zh-CN", "zh"], ["fi-FI", "en"]]) {
        const { page, close } = await opened(name, "", { locale });
        assert.equal(await page.locator(count).first().textContent(), title[language]);
        assert.equal(await page.locator("html").getAttribute("lang"), language);
        await close();
      }
      const paper = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
      const { page, close } = await opened(name, "", { colorScheme: "dark" });
      const dark = await paper(page);
      await page.locator("#theme").selectOption("light");
      assert.notEqual(await paper(page), dark);
      await page.locator("#language").focus();
      await page.locator("#language").selectOption("zh");
      assert.equal(await page.locator(count).first().textContent(), title.zh);
      await page.locator("main .links, main canvas, main .read-bar").first().waitFor();
      assert.match(await addressOf(page), /lang=zh&theme=light/);
      assert.equal(await page.evaluate(() => document.activeElement.id), "language");
      await close();
    }
  },

  async "nothing is wider than a phone of 320 pixels"() {
    for (const lang of ["en", "tr", "zh"]) {
      for (const name of ["sentences", "calls", "alive", "looks", "long", "mixed", "difference", "effects", "read"]) {
        const { page, close } = await opened(name, `#lang=${lang}`, { viewport: { width: 320, height: 640 } });
        await unfold(page);
        assert.ok((await wide(page)) <= 320, `${lang} ${name}`);
        await close();
      }
    }
  },

  async "axe finds nothing serious, in light and dark"() {
    for (const theme of ["light", "dark"]) {
      for (const name of ["sentences", "calls", "looks", "long", "difference", "effects", "read"]) {
        const { page, close } = await opened(name, `#theme=${theme}`);
        await unfold(page);
        assert.deepEqual(await serious(page), [], `${theme} ${name}`);
        await close();
      }
    }
  },

  async "pictures fit another width"() {
    const { page, close } = await opened("sentences");
    await word(page, 1, 0).click();
    await page.setViewportSize({ width: 400, height: 800 });
    await page.waitForFunction(() => document.querySelector(".links").viewBox.baseVal.width < 400);
    assert.deepEqual(await pressed(page), ["the"]);
    await close();
  },

  async "with the model inside, a sentence opens in the translator, and the sentences are still there"() {
    const { page, close } = await opened("alive", "#s=2.t1");
    assert.deepEqual(await page.locator("nav button").allTextContents(), ["Sentences", "Translator", "Playground"]);
    await sentence(page, 2).getByRole("button", { name: "Open in the translator" }).click();
    await says(page.locator(".result"), "J'ai perdu.");
    assert.equal(await page.locator("#text").inputValue(), "I lost.");
    assert.match(await addressOf(page), /text=I\+lost\./);
    await page.getByRole("button", { name: "Go." }).click();
    await says(page.locator(".result"), "Va !");
    await page.locator("#to-sentences").click();
    await page.locator('.links [aria-pressed="true"]').waitFor();
    assert.deepEqual(await pressed(page), ["J'"]);
    await page.locator("#to-playground").click();
    assert.match(await page.locator(".answer").textContent(), /Prediction: \d/);
    await close();
    const linked = await opened("alive", "#text=Go.");
    await says(linked.page.locator(".result"), "Va !");
    await linked.close();
  },

  async "maps of calls are drawn as they come near, and read cell by cell"() {
    const { page, close } = await opened("calls", "", { viewport: { width: 1200, height: 400 } });
    assert.deepEqual(await page.locator("h2").allTextContents(), ["All calls", "<b>bold</b> · 0", "<b>bold</b> · 1", "long"]);
    assert.equal(await page.locator("h3").first().textContent(), "Mean entropy in nats by layer and head: 0 if each query attends to one key");
    const maps = page.locator(".window");
    await maps.first().focus();
    await page.keyboard.press("Tab");
    await page.keyboard.press("Shift+Tab");
    await says(page.locator(".cell-readout").first(), "<b>bold</b> · 0 × 0: 0.6931");
    await page.keyboard.press("ArrowRight");
    await says(page.locator(".cell-readout").first(), "<b>bold</b> · 0 × 1: 0");
    const last = page.locator(".call").nth(3);
    assert.equal(await last.locator("canvas").count(), 0);
    await last.evaluate((each) => each.scrollIntoView());
    await last.locator("canvas").first().waitFor();
    assert.equal(await last.locator("h3").last().textContent(), "Total weight of each key · the first 16 of 17 heads · 4,096 cells for 100,000 keys (each cell shows its largest weight)");
    await close();
  },

  async "maps of calls have tables of what is in view"() {
    const { page, close } = await opened("calls");
    await page.locator("details").first().evaluate((each) => (each.open = true));
    await page.locator("table").first().waitFor();
    const rows = await page.locator("table").first().locator("tr").evaluateAll((all) => all.map((each) => [...each.cells].map((cell) => cell.textContent)));
    assert.deepEqual(rows, [["", "0", "1"], ["<b>bold</b> · 0", "0.6931", "0"], ["<b>bold</b> · 1", "0.6931", "no number"]]);
    await close();
  },

  async "a model's heads: tokens chosen by a pointer show their weight in every head"() {
    const { page, close } = await opened("looks");
    const words = (side) => page.locator(`.tokens.${side} button:visible`);
    assert.deepEqual(await words("from").allTextContents(), ["a", "long", "est", "day"]);
    await page.locator("input.special").check();
    assert.deepEqual(await words("to").allTextContents(), ["<s>", "a", "long", "est", "day"]);
    await words("from").nth(1).click();
    await words("to").nth(3).click();
    const rows = await page.locator("table.pairs tbody tr").evaluateAll((all) => all.map((each) => [...each.cells].map((cell) => cell.textContent)));
    assert.deepEqual(rows, [["0", "12.5%", "25.0%", "50.0%"], ["1", "25.0%", "50.0%", "0.0%"]]);
    await words("from").nth(1).click();
    assert.equal(await page.locator("table.pairs").count(), 0);
    await close();
  },

  async "a model's heads: a small map shows its head alone, with lines to what it looks at"() {
    const { page, close } = await opened("looks");
    const chips = () => page.locator(".chip").evaluateAll((all) => all.map((each) => each.getAttribute("aria-pressed")));
    assert.equal((await chips()).filter((each) => each === "true").length, 1);
    await page.getByRole("button", { name: "all heads" }).click();
    assert.deepEqual(await chips(), ["true", "true", "true"]);
    const all = await ink(page);
    await page.getByRole("button", { name: "layer 1, head 2" }).click();
    assert.deepEqual(await chips(), ["false", "false", "true"]);
    assert.equal(await page.getByRole("combobox", { name: "layers" }).inputValue(), "1");
    const one = await ink(page);
    assert.ok(0 < one && one < all);
    await page.locator(".chip").nth(0).click();
    assert.deepEqual(await chips(), ["true", "false", "false"]);
    await page.getByRole("button", { name: "several heads" }).click();
    await page.locator(".chip").nth(1).click();
    assert.deepEqual(await chips(), ["true", "true", "false"]);
    await page.locator(".chip").nth(0).click();
    await page.locator(".chip").nth(1).click();
    assert.equal(await ink(page), 0);
    await close();
  },

  async "a model's heads: what a token looks at, and who looks at it, is said with numbers, and saved"() {
    const { page, close } = await opened("looks");
    await page.getByRole("button", { name: "layer 0, head 0" }).click();
    await page.locator(".tokens.from button:visible").nth(1).hover();
    await says(page.locator(".says"), "“long (2)” looked at: long (2) 50.0%, est (3) 25.0%, <s> (0) 12.5%, day (4) 12.5%");
    await page.locator(".tokens.to button:visible").nth(1).click();
    await page.mouse.move(2, 2);
    await says(page.locator(".says"), "“long (2)” was looked at by: long (2) 50.0%, a (1) 25.0%, <s> (0) 12.5%, day (4) 12.5%");
    await page.locator("input.mean").check();
    await page.mouse.move(3, 3);
    await says(page.locator(".says"), "“long (2)” was looked at by: long (2) 50.0%, <s> (0) 12.5%, a (1) 12.5%, est (3) 12.5%, day (4) 12.5%");
    await page.locator("input.mean").uncheck();
    const menu = async (name) => {
      await page.locator(".titled summary").click();
      return page.locator(".titled").getByRole("button", { name });
    };
    const [table, rows] = await saved(page, await menu("CSV"));
    assert.equal(table, "layer-0-head-0.csv");
    assert.deepEqual(rows.toString().split("\n").slice(0, 2), ["layer,head,query,key,weight,query_token,key_token", '0,0,0,0,0.500,"<s>","<s>"']);
    const [picture, drawn] = await saved(page, await menu("SVG"));
    assert.equal(picture, "layer-0-head-0.svg");
    assert.ok(drawn.toString().includes(">long<") && drawn.toString().includes("<line"));
    const [, painted] = await saved(page, await menu("PNG"));
    assert.equal(painted.subarray(1, 4).toString(), "PNG");
    await page.evaluate(() => (window.print = () => {})); // the browser's own window is nobody's to press
    await (await menu("PDF")).click();
    await page.emulateMedia({ media: "print" });
    assert.deepEqual([await page.locator(".sheet svg").isVisible(), await page.locator(".tokens.from").isVisible()], [true, false]);
    await page.evaluate(() => dispatchEvent(new Event("afterprint")));
    assert.deepEqual([await page.locator(".sheet").count(), await page.locator(".tokens.from").isVisible()], [0, true]);
    await page.emulateMedia({ media: "screen" });
    await page.getByRole("combobox", { name: "Order" }).selectOption("evenly");
    assert.equal(await page.locator(".heads.sorted .thumb").count(), 6);
    await close();
  },

  async "a model's heads: a query and a key are typed, and every control keeps the focus that it has"() {
    const { page, close } = await opened("looks");
    const field = page.locator("input[type=number]");
    await field.nth(0).focus();
    for (const key of ["9", "Tab", "1", "Tab"]) await page.keyboard.press(key);
    assert.deepEqual([await field.nth(0).inputValue(), await field.nth(1).inputValue()], ["4", "1"], "of five tokens, the last one");
    assert.ok(await page.evaluate(() => document.activeElement.querySelector("table.pairs")));
    await page.locator("#theme").selectOption("dark");
    assert.equal(await field.nth(0).inputValue(), "4");
    const controls = page.locator(".views :is(button:not([tabindex]), select, input):visible");
    for (let k = 0, count = await controls.count(); k < count; k++) {
      const control = await controls.nth(k).elementHandle();
      await control.focus();
      await page.keyboard.press(await control.evaluate((each) => (each.matches("button, [type=checkbox]") ? "Space" : "ArrowUp")));
      assert.ok(await control.evaluate((each) => each === document.activeElement), await control.evaluate((each) => each.outerHTML));
    }
    await close();
    const other = await opened("batch");
    await other.page.getByRole("button", { name: "batch element 1" }).focus();
    await other.page.keyboard.press("Space");
    assert.equal(await active(other.page), "Within the text · batch element 1");
    await other.close();
  },

  async "a model's heads: a chosen query of a long text, or key, comes into sight with its lines"() {
    const { page, close } = await opened("long");
    const field = page.locator("input[type=number]");
    await field.nth(0).fill("390");
    await page.keyboard.press("Tab");
    assert.ok(await inSight(page, 0, 390));
    assert.ok(await ink(page) > 0);
    await page.keyboard.type("9");
    await page.keyboard.press("Tab");
    assert.ok(await inSight(page, 1, 9));
    assert.ok(await ink(page) > 0);
    assert.doesNotMatch(await page.locator("table.pairs").textContent(), /< 0.0%/);
    await close();
  },

  async "a model's heads: tokens of a long text are counted, found by their words, and gone through by keys"() {
    const { page, close } = await opened("long");
    const told = () => page.locator(".views .tools span:visible").allTextContents();
    const found = () => page.locator(".tokens.from .found").evaluateAll((all) => all.slice(0, 3).map((each) => each.textContent));
    assert.deepEqual(await told(), ["1–35 of 400"]);
    await page.getByRole("searchbox").fill("MoonL");
    assert.deepEqual(await found(), ["moon", "light", "moon"]);
    assert.equal((await told())[1], "Found: 100");
    for (let k = 0; k < 90; k++) await page.keyboard.press("Enter");
    await page.waitForFunction(() => document.querySelector(".columns").scrollTop > 6000);
    assert.ok(await inSight(page, 0, 8 * 45 + 6)); // two rows in each eight
    await page.locator(".columns").evaluate((each) => (each.scrollTop = 0));
    await page.locator(".columns").focus();
    for (const [key, text, side, k] of [["ArrowDown", "the", 0, 0], ["ArrowDown", "quick", 0, 1], ["ArrowRight", "quick", 1, 1], ["PageDown", "fox", 1, 35], ["End", "light", 1, 399], ["ArrowUp", "moon", 1, 398]]) {
      await page.keyboard.press(key);
      assert.deepEqual([await active(page), await token(page, side, k).evaluate((each) => each === document.activeElement), await inSight(page, side, k)], [text, true, true], key);
    }
    assert.match(await page.locator(".says").textContent(), /moon.* \(398\)” was looked at by/);
    await page.keyboard.press("Enter");
    assert.equal(await page.locator("input[type=number]").nth(1).inputValue(), "398");
    await close();
    const short = await opened("looks");
    assert.equal(await short.page.getByRole("searchbox").count(), 0);
    await short.close();
  },

  async "a model's heads: tokens of either direction are beside their lines, and all can be seen"() {
    const { page, close } = await opened("mixed");
    assert.deepEqual(await page.locator(".tokens.from button").allTextContents(), ["שלום", "עולם", "مرحبا", "text", "␣", "⏎⇥", "∅", "⟨202E⟩evil"]);
    const gaps = await page.locator(".tokens button").evaluateAll((all) => all.map((each) => {
      const range = document.createRange();
      range.selectNodeContents(each);
      const [own, canvas] = [range, document.querySelector(".stage canvas")].map((of) => of.getBoundingClientRect());
      return Math.abs(each.closest(".from") ? canvas.left - own.right : own.left - canvas.right);
    }));
    assert.ok(Math.max(...gaps) < 10, gaps);
    await token(page, 0, 0).hover();
    await says(page.locator(".says"), "“שלום (0)” looked at: עולם (1) 65.0%, שלום (0) 5.0%, مرحبا (2) 5.0%, text (3) 5.0%, ␣ (4) 5.0%");
    const lefts = await page.locator(".says").evaluate((each) => ["עולם", "(1)", "65.0", "שלום (0) 5", "(2)"].map((part) => {
      const [range, at] = [document.createRange(), each.textContent.replace(/[\u2068\u2069]/g, "\u2068").lastIndexOf(part.split(" ")[0])];
      range.setStart(each.firstChild, at);
      range.setEnd(each.firstChild, at + 1);
      return range.getBoundingClientRect().left;
    }));
    assert.deepEqual(lefts, [...lefts].sort((one, other) => one - other), "numbers are behind their tokens");
    await close();
  },

  async "a model's heads: a colour means a head, and a sign what a head does"() {
    const { page, close } = await opened("looks");
    const hues = (all) => all.map((each) => getComputedStyle(each).getPropertyValue("--chip"));
    const chips = await page.locator(".chip").evaluateAll(hues);
    assert.equal(new Set(chips).size, 3);
    const grey = await page.locator(".thumb").evaluateAll((all) => all.every((each) => {
      const [red, , blue] = getComputedStyle(each).borderBottomColor.match(/[\d.]+/g).map(Number);
      return Math.abs(red - blue) < (red > 1 ? 20 : 0.08);
    }));
    assert.ok(grey);
    for (const text of await page.locator(".legend span").allTextContents()) assert.match(text, /^[←→=⇤≡↻¶≈] (evenly )?at /);
    assert.match(await page.locator(".thumb span").first().textContent(), /^0 [←→=⇤≡↻¶≈]$/);
    await close();
  },

  async "a model's heads: small maps can be seen when the system turns dark while the page is open"() {
    const { page, close } = await opened("looks");
    for (const colorScheme of ["light", "dark", "light"]) {
      await page.emulateMedia({ colorScheme });
      assert.ok(await contrast(page, page.locator(".thumb canvas").first()) > 150, colorScheme);
    }
    await page.locator("#theme").selectOption("dark");
    assert.ok(await contrast(page, page.locator(".thumb canvas").first()) > 150);
    await close();
  },

  async "a model's heads: all digits of a weight are right"() {
    const { page, close } = await opened("long");
    const weights = JSON.parse(await readFile(`${folder}/long.json`));
    await page.getByRole("button", { name: "layer 0, head 0" }).click();
    await page.locator(".titled summary").click();
    const [, csv] = await saved(page, page.locator(".titled").getByRole("button", { name: "CSV" }));
    const rows = csv.toString().split("\n").slice(1).map((row) => row.split(",").slice(2, 5).map(Number));
    assert.ok(rows.length > 5000);
    for (const [query, key, weight] of rows) assert.ok(Math.abs(weight / weights[query][key] - 1) < 0.0052, `${query} ${key} ${weight}`); // half of the third digit
    await token(page, 0, 300).hover();
    const best = Math.max(...weights[300]);
    const [, key, shown] = /: [^(]*\((\d+)\) ([\d.]+)%/.exec(await page.locator(".says").textContent());
    assert.equal(Number(key), weights[300].indexOf(best));
    assert.ok(Math.abs(shown - 100 * best) < 0.07, `${shown} ${best}`);
    await close();
  },

  async "a difference of two runs: more weight is blue, less is orange, and both have their sign"() {
    const { page, close } = await opened("difference");
    await says(page.locator(".views .lead"), "Layer 1, head 2: its weights changed by 0.50 (total variation).");
    assert.deepEqual(await page.locator(".chip").allTextContents(), ["0 · 0.00", "1 · 0.00", "2 · 0.50"]);
    assert.deepEqual(await page.locator(".thumb span").evaluateAll((all) => all.slice(0, 2).map((each) => each.textContent)), ["1·2: 0.50", "0·0: 0.00"]);
    assert.deepEqual(await page.locator(".swatch").first().locator("xpath=../..").locator("span").allTextContents(), [" more weight in the first run", " less weight in the first run"]);
    // Points of the canvases that are more blue than red, and more red than blue.
    const tints = (selector) => page.locator(selector).first().evaluate((each) => {
      const copy = new OffscreenCanvas(each.width, each.height).getContext("2d", { willReadFrequently: true });
      copy.drawImage(each, 0, 0);
      const { data } = copy.getImageData(0, 0, each.width, each.height);
      const found = { blue: 0, orange: 0 };
      for (let k = 0; k < data.length; k += 4) if (data[k + 3] > 40) found[data[k + 2] > data[k] ? "blue" : "orange"]++;
      return found;
    });
    assert.deepEqual(await tints(".thumb canvas"), { blue: 4, orange: 8 });
    const lines = await tints(".stage canvas");
    assert.ok(lines.blue > 100 && lines.orange > 100, JSON.stringify(lines));
    await token(page, 0, 1).hover();
    await says(page.locator(".says"), "“red (1)” looked at: a (0) +50.0%, rose (2) -25.0%, falls (3) -25.0%");
    await token(page, 0, 1).click();
    for (const [key, weight, colour] of [[0, "+50.0%", "20 130 200"], [2, "-25.0%", "222 106 16"]]) {
      await token(page, 1, key).click();
      const cell = page.locator("table.pairs tbody tr").nth(1).locator("td").nth(2);
      assert.equal(await cell.textContent(), weight);
      assert.ok((await cell.getAttribute("style")).includes(colour));
    }
    await page.locator(".titled summary").click();
    const [, csv] = await saved(page, page.locator(".titled").getByRole("button", { name: "CSV" }));
    assert.deepEqual(csv.toString().split("\n").slice(1, 4).map((row) => row.split(",")[4]), ["0.500", "-0.250", "-0.250"]);
    await page.locator(".titled summary").click();
    const [, svg] = await saved(page, page.locator(".titled").getByRole("button", { name: "SVG" }));
    assert.equal(svg.toString().match(/stroke="rgb\(222,? 106,? 16\)"/g).length, 4, "a line to the kept key from each query");
    await close();
  },

  async "effects of heads: they are in the order of their effects, in two colours, and said with the pattern"() {
    const { page, close } = await opened("effects");
    const lead = page.locator(".views .lead");
    assert.match(await lead.textContent(), /^Layer 1, head 0 (looks|has no clear pattern).*\(score 0\.\d\d\)\. If layer 1, head 0 is cut, the result changes by -9\.3\.$/);
    const shown = async () => (await page.locator(".thumb span").allTextContents()).join(" ");
    assert.equal(await shown(), "1·0: -9.3 1·1: +4 0·2: +0.5 1·2: -0.015 0·0: – 0·1: 0");
    const colours = await page.locator(".thumb").evaluateAll((all) => all.slice(0, 3).map((each) => {
      const [red, , blue] = getComputedStyle(each).backgroundColor.match(/[\d.]+/g).map(Number);
      return red > blue ? "orange" : "blue";
    }));
    assert.deepEqual(colours, ["orange", "blue", "blue"]);
    assert.deepEqual(await page.locator(".chip").allTextContents(), ["0 · -9.3", "1 · +4", "2 · -0.015"]);
    const chips = await page.locator(".chip").evaluateAll((all) => all.map((each) => each.style.getPropertyValue("--chip")));
    assert.deepEqual(chips, ["rgb(222 106 16 / 1)", "rgb(20 130 200 / 1)", "rgb(222 106 16 / 1)"]);
    assert.equal(await page.locator(".legend .swatch").count(), 4); // above the lines, and above the maps
    await page.getByRole("button", { name: "layer 0, head 0" }).click();
    assert.doesNotMatch(await lead.textContent(), /is cut/);
    await page.getByRole("combobox", { name: "Order" }).selectOption("");
    assert.match(await shown(), /^0 .*1 .*2 /);
    await close();
    for (const [language, words] of [["tr", "Katman 1, kafa 0 kesilirse sonuç -9,3 değişir."], ["zh", "若切除第 1 层头 0，结果变化 -9.3。"]]) {
      const other = await opened("effects", `#lang=${language}`);
      assert.ok((await other.page.locator(".views .lead").textContent()).includes(words));
      await other.close();
    }
    const estimates = await opened("estimates");
    assert.match(await estimates.page.locator(".views .lead").textContent(), /the result changes by about \+1 \(an estimate\)\.$/);
    await estimates.close();
  },

  async "a model's heads: headings name layers and elements, and a model without a pattern has none"() {
    const { page, close } = await opened("batch");
    assert.deepEqual(await page.locator(".views > .choices button").allTextContents(), ["Within the text · batch element 0", "Within the text · batch element 1"]);
    assert.deepEqual(await page.locator("select[aria-label=Layers] option").allTextContents(), ["Layer 0 · layers.0.self_attn"]);
    assert.equal(await page.locator(".views .lead").textContent(), "No head has a clear pattern.");
    await close();
    const long = await opened("long");
    assert.deepEqual(await long.page.locator("select[aria-label=Layers] option").allTextContents(), ["Layer 0", "Layer 1"]);
    assert.match(await long.page.locator(".views .lead").textContent(), /^Layer \d, head \d looks at the previous token/);
    await long.close();
  },

  async "passages that an answer read: of all heads and of one, of all text and of passages, of one token"() {
    const { page, close } = await opened("read");
    const rows = () => page.locator("tbody tr").evaluateAll((all) => all.map((each) => [...each.cells].map((cell) => cell.textContent)));
    assert.deepEqual(await page.locator("thead th").allTextContents(), ["1: le chat", "<i>2</i>", "first token", "answer so far"]);
    assert.deepEqual(await rows(), [["even share", "30%", "20%", "10%", "0%"], ["the", "25%", "25%", "50%", "0%"], ["<b>", "18%", "22%", "43%", "18%"]]);
    await says(page.locator(".says"), "The answer read most: <i>2</i> (24%; even share: 20%)");
    const [layer, head] = [page.locator("select[aria-label=Layers]"), page.locator("select[aria-label=Heads]")];
    await layer.selectOption({ label: "Layer 3" });
    assert.deepEqual((await rows())[1], ["the", "20%", "20%", "60%", "0%"]);
    await head.selectOption({ label: "Head 1" });
    assert.deepEqual((await rows()).slice(1), [["the", "10%", "10%", "80%", "0%"], ["<b>", "40%", "0%", "50%", "10%"]]);
    await says(page.locator(".says"), "Layer 3, head 1: The answer read most: 1: le chat (25%; even share: 30%)");
    await layer.selectOption({ label: "Layer 2" }); // has no head 1
    assert.deepEqual((await rows())[1], ["the", "0%", "0%", "0%", "0%"]);
    await layer.selectOption({ label: "Layer 3" });
    await page.getByLabel("Only passages").check();
    assert.deepEqual(await rows(), [["even share", "60%", "40%", "0%", "0%"], ["the", "50%", "50%", "0%", "0%"], ["<b>", "100%", "0%", "0%", "0%"]]);
    assert.deepEqual(await page.locator(".read-bar").nth(1).locator("i").evaluateAll((all) => all.map((each) => Math.round(each.offsetWidth / each.parentElement.offsetWidth * 100))), [50, 50, 0, 0]);
    await reach(page, ".read-answer button:nth-child(2)");
    await page.keyboard.press("Enter");
    await says(page.locator(".says"), "Layer 3, head 1: “<b>” read most: 1: le chat (100%; even share: 60%)");
    assert.equal(await page.locator(".read-text").textContent(), "le chat\n<i>a</i> b");
    const shares = () => page.locator(".read-text mark").evaluateAll((all) => all.map((each) => Number(each.style.getPropertyValue("--share"))));
    assert.deepEqual(await shares(), [1, 0]);
    await page.keyboard.press("Enter");
    await says(page.locator(".says"), "Layer 3, head 1: The answer read most: 1: le chat (75%; even share: 60%)");
    assert.deepEqual(await shares(), [1, 0.333]);
    await close();
    const plain = await opened("read", "", { javaScriptEnabled: false });
    assert.match(await plain.page.locator("table").textContent(), /the25%25%50%0%/);
    await plain.close();
    const turkish = await opened("read", "#lang=tr");
    assert.equal(await turkish.page.locator("thead th").nth(2).textContent(), "ilk parça");
    await turkish.close();
  },
};

await run(browser, scenarios, only);
