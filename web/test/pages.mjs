// Pages of sentences and of calls in a real browser, with the network cut off, as a reader uses them.
//   node pages.mjs FOLDER CHROMIUM [NAME …]      prints {name: null, or what went wrong}
// FOLDER: sentences.html, alive.html (with the model), calls.html, looks.html; tests/translation/test_pages_browser.py makes them.
import assert from "node:assert/strict";
import { pathToFileURL } from "node:url";
import { launch, opened as open, reach, run, saved, says, serious } from "./opened.mjs";

const [folder, executablePath, ...only] = process.argv.slice(2);
const browser = await launch(executablePath);
const opened = async (name, hash = "", options = {}) => {
  const found = await open(browser, `${pathToFileURL(`${folder}/${name}.html`).href}${hash}`, options);
  await found.page.locator(options.javaScriptEnabled === false ? "main" : "main .links, main canvas").first().waitFor();
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
const unfold = async (page) => {
  for (const details of await page.locator("details").all()) await details.evaluate((each) => (each.open = true));
};

const scenarios = {
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
    assert.match(page.url(), /#s=2\.t1$/);
    await page.mouse.move(2, 2);
    await says(readout(page), "“t2” looked at: a 100.0%");
    await page.reload();
    await page.locator('.links [aria-pressed="true"]').waitFor();
    assert.deepEqual(await pressed(page), ["t2"]);
    await page.keyboard.press("Tab");
    await word(page, 2, 0).focus();
    await page.keyboard.press("Escape");
    assert.deepEqual(await pressed(page), []);
    assert.ok(!page.url().includes("s=2"));
    await word(page, 1, 0, "read").click();
    assert.match(page.url(), /s=1\.s1$/);
    await word(page, 1, 0, "read").click();
    assert.ok(!page.url().includes("s=1"));
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
    assert.match(page.url(), /s=1\.t2\.s2$/);
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
    assert.ok(await page.getByText("No sentence has these words.").isVisible());
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
      await page.locator("main .links, main canvas").first().waitFor();
      assert.match(page.url(), /lang=zh&theme=light/);
      assert.equal(await page.evaluate(() => document.activeElement.id), "language");
      await close();
    }
  },

  async "nothing is wider than a phone of 320 pixels"() {
    for (const lang of ["en", "tr", "zh"]) {
      for (const name of ["sentences", "calls", "alive", "looks"]) {
        const { page, close } = await opened(name, `#lang=${lang}`, { viewport: { width: 320, height: 640 } });
        await unfold(page);
        assert.ok((await wide(page)) <= 320, `${lang} ${name}`);
        await close();
      }
    }
  },

  async "axe finds nothing serious, in light and dark"() {
    for (const theme of ["light", "dark"]) {
      for (const name of ["sentences", "calls", "looks"]) {
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
    assert.match(page.url(), /text=I\+lost\./);
    await page.getByRole("button", { name: "Go." }).click();
    await says(page.locator(".result"), "Va !");
    await page.locator("#to-sentences").click();
    await page.locator('.links [aria-pressed="true"]').waitFor();
    assert.deepEqual(await pressed(page), ["j'"]);
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
    assert.equal(await page.locator("h3").first().textContent(), "Mean entropy in nats, by layer and head: 0 where a head looks at one key alone");
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
    assert.equal(await last.locator("h3").last().textContent(), "How much each key was looked at · the first 16 of 17 heads · 4,096 cells for 100,000 keys, each the largest of its weights");
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
    const words = (side) => page.locator(`.tokens.${side} li`);
    assert.deepEqual(await words("from").allTextContents(), ["a", "long", "est", "day"]);
    await page.locator("input.special").check();
    assert.deepEqual(await words("to").allTextContents(), ["<s>", "a", "long", "est", "day"]);
    await words("from").nth(1).getByRole("button").click();
    await words("to").nth(3).getByRole("button").click();
    const rows = await page.locator("table.pairs tbody tr").evaluateAll((all) => all.map((each) => [...each.cells].map((cell) => cell.textContent)));
    assert.deepEqual(rows, [["0", "12.5%", "25.0%", "50.0%"], ["1", "25.0%", "50.0%", "0.0%"]]);
    await words("from").nth(1).getByRole("button").click();
    assert.equal(await page.locator("table.pairs").count(), 0);
    await close();
  },

  async "a model's heads: a small map shows its head alone, with lines to what it looks at"() {
    const { page, close } = await opened("looks");
    const chips = () => page.locator(".chip").evaluateAll((all) => all.map((each) => each.getAttribute("aria-pressed")));
    const ink = () => page.locator(".stage canvas").evaluate((each) => {
      const copy = new OffscreenCanvas(each.width, each.height).getContext("2d", { willReadFrequently: true });
      copy.drawImage(each, 0, 0);
      const { data } = copy.getImageData(0, 0, each.width, each.height);
      return data.filter((value, k) => k % 4 === 3 && value > 0).length;
    });
    assert.equal((await chips()).filter((each) => each === "true").length, 1);
    await page.getByRole("button", { name: "all heads" }).click();
    assert.deepEqual(await chips(), ["true", "true", "true"]);
    const all = await ink();
    await page.getByRole("button", { name: "layer 1, head 2" }).click();
    assert.deepEqual(await chips(), ["false", "false", "true"]);
    assert.equal(await page.getByRole("combobox", { name: "layers" }).inputValue(), "1");
    const one = await ink();
    assert.ok(0 < one && one < all);
    await page.locator(".chip").nth(0).click();
    assert.deepEqual(await chips(), ["true", "false", "false"]);
    await page.getByRole("button", { name: "several heads" }).click();
    await page.locator(".chip").nth(1).click();
    assert.deepEqual(await chips(), ["true", "true", "false"]);
    await page.locator(".chip").nth(0).click();
    await page.locator(".chip").nth(1).click();
    assert.equal(await ink(), 0);
    await close();
  },

  async "a model's heads: what a token looks at, and who looks at it, is said with numbers, and saved"() {
    const { page, close } = await opened("looks");
    await page.getByRole("button", { name: "layer 0, head 0" }).click();
    await page.locator(".tokens.from li button").nth(1).hover();
    await says(page.locator(".says"), "“long (2)” looked at: long (2) 50.0%, est (3) 25.0%, <s> (0) 12.5%, day (4) 12.5%");
    await page.locator(".tokens.to li button").nth(1).click();
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
};

await run(browser, scenarios, only);
