"use strict";
(() => {
  const SVG = "http://www.w3.org/2000/svg";
  const SMALLEST = 0.02;     // weights below this are shaded but carry no number and no ribbon, while there are larger ones
  const REST = 0.1;          // weights from this on show as threads while nothing is chosen, and each word's largest
  const PER_UNIT = 1000;     // weights are stored in thousandths

  const data = JSON.parse(document.getElementById("data").textContent);
  const announce = document.getElementById("announce");
  const views = new Map();   // article -> what was built for it
  let pinned = null;         // { view, side, index }: the word that was clicked
  let shown = null;          // the word whose weights are shown now

  const other = (side) => (side === "source" ? "target" : "source");

  function create(tag, className, text) {
    const element = document.createElement(tag);
    if (className) element.className = className;
    if (text !== undefined) element.textContent = text;
    return element;
  }

  // ---- Building a sentence, when it comes near the window -------------------------------------------------------

  function build(article) {
    if (views.has(article)) return views.get(article);
    const number = Number(article.id.slice(1));
    const [source, target, flat] = data[number - 1];
    const pair = article.querySelector(".pair");
    const view = {
      article, pair, number,
      tokens: { source, target },
      weight: (row, column) => flat[row * source.length + column] / PER_UNIT,
      largest: flat.reduce((most, each) => Math.max(most, each), 1) / PER_UNIT,
      elements: {},
    };
    views.set(article, view);
    for (const side of ["source", "target"]) pair.append(tokenRow(view, side));
    view.threads = document.createElementNS(SVG, "svg");
    view.threads.setAttribute("class", "threads");
    view.threads.setAttribute("aria-hidden", "true");
    pair.append(view.threads);
    article.append(matrixOf(view));
    drawRest(view);
    sizes.observe(pair);
    return view;
  }

  function tokenRow(view, side) {
    const text = view.pair.querySelector(`.text.${side}`);
    const row = create("div", `tokens ${side}`);
    row.setAttribute("role", "toolbar");
    row.setAttribute("aria-label", `${side === "source" ? "Source" : "Translation"} of sentence ${view.number}, word by word`);
    row.lang = text.lang;
    row.dir = getComputedStyle(text).direction;
    view.elements[side] = view.tokens[side].map((token, index) => {
      const element = tokenElement(token);
      element.tabIndex = index === 0 ? 0 : -1;
      element.dataset.side = side;
      element.dataset.index = index;
      row.append(element);
      return element;
    });
    text.classList.add("unseen");
    return row;
  }

  function tokenElement(token) {
    const element = create("span", "token");
    element.setAttribute("role", "button");
    element.setAttribute("aria-pressed", "false");
    element.dir = "auto";
    const marked = /^([▁Ġ]|##)(.+)$|^(.+)(@@|<\/w>)$/us.exec(token);
    if (/^(<[^<>\s]+>|\[[A-Z]+\])$/u.test(token)) element.classList.add("special");
    if (marked?.[1]) element.append(create("span", "mark", marked[1]), marked[2]);
    else if (marked) element.append(marked[3], create("span", "mark", marked[4]));
    else element.textContent = token || "\u00a0";
    return element;
  }

  // ---- Weights of one word --------------------------------------------------------------------------------------

  function weightsOf({ view, side, index }) {
    return view.tokens[other(side)].map((_, i) => (side === "target" ? view.weight(index, i) : view.weight(i, index)));
  }

  // From which weight on a word gets a number and a ribbon. Where all weights are small, the larger ones do.
  const least = (weights) => Math.min(SMALLEST, Math.max(...weights) / 2) || SMALLEST;

  function same(a, b) {
    return a === b || (a && b && a.view === b.view && a.side === b.side && a.index === b.index);
  }

  function show(choice) {
    if (same(choice, shown)) return;
    if (shown) clear(shown.view);
    shown = choice;
    if (!choice) return;
    const { view, side, index } = choice;
    view.pair.classList.add("active");
    view.elements[side][index].classList.add("chosen");
    const weights = weightsOf(choice);
    weights.forEach((weight, i) => {
      const element = view.elements[other(side)][i];
      element.style.setProperty("--weight", weight);
      if (weight < least(weights)) return;
      element.classList.add("lit");
      element.dataset.weight = weight.toFixed(2);
    });
    drawRibbons(choice);
  }

  function clear(view) {
    view.pair.classList.remove("active");
    for (const element of [...view.elements.source, ...view.elements.target]) {
      element.classList.remove("lit", "chosen");
      element.style.removeProperty("--weight");
      delete element.dataset.weight;
    }
    for (const ribbon of view.threads.querySelectorAll(".ribbon")) ribbon.remove();
  }

  function pin(choice) {
    if (pinned) pinned.view.elements[pinned.side][pinned.index].setAttribute("aria-pressed", "false");
    pinned = same(choice, pinned) ? null : choice;
    if (pinned) pinned.view.elements[pinned.side][pinned.index].setAttribute("aria-pressed", "true");
    const place = pinned && `#s${pinned.view.number}.${pinned.side === "target" ? "t" : "s"}${pinned.index + 1}`;
    history.replaceState(null, "", place || location.pathname + location.search);
    show(pinned);
    if (pinned) say(pinned);
  }

  function say(choice) {
    const { view, side, index } = choice;
    const names = view.tokens[other(side)];
    const weights = weightsOf(choice);
    const seen = weights
      .map((weight, i) => [weight, names[i]])
      .filter(([weight]) => weight >= least(weights))
      .sort((a, b) => b[0] - a[0])
      .slice(0, 5)
      .map(([weight, name]) => `${name} ${weight.toFixed(2)}`)
      .join(", ");
    const verb = side === "target" ? "looked at" : "was looked at by";
    announce.textContent = `${view.tokens[side][index]} ${verb} ${seen || "nothing"}`;
  }

  // ---- Threads and ribbons --------------------------------------------------------------------------------------

  function boxes(view) {
    const frame = view.pair.getBoundingClientRect();
    const measure = (element) => {
      const box = element.getBoundingClientRect();
      return { left: box.left - frame.left, top: box.top - frame.top, bottom: box.bottom - frame.top, width: box.width };
    };
    return { source: view.elements.source.map(measure), target: view.elements.target.map(measure) };
  }

  function path(className, d) {
    const element = document.createElementNS(SVG, "path");
    element.setAttribute("class", className);
    element.setAttribute("d", d);
    return element;
  }

  const lines = (row) => new Set(row.map((box) => Math.round(box.bottom))).size;

  // At rest, the strong weights show as threads. Where a row has several lines, and threads pass behind text, each word
  // has one alone, which is the fainter the more lines there are.
  function drawRest(view) {
    view.threads.replaceChildren();
    const { source, target } = boxes(view);
    const crossed = lines(source) + lines(target) - 1;
    const strongest = target.map((_, row) => source.reduce((best, _, i) => (view.weight(row, i) > view.weight(row, best) ? i : best), 0));
    target.forEach((to, row) => source.forEach((from, column) => {
      const weight = view.weight(row, column);
      if (column !== strongest[row] && (crossed > 1 || weight < REST)) return;
      const strength = weight / view.largest;
      const [x1, y1, x2, y2] = [from.left + from.width / 2, from.bottom + 3, to.left + to.width / 2, to.top - 3];
      const middle = (y1 + y2) / 2;
      const thread = path("rest", `M${x1} ${y1}C${x1} ${middle} ${x2} ${middle} ${x2} ${y2}`);
      thread.style.strokeWidth = 0.75 + 1.75 * strength;
      thread.style.strokeOpacity = (0.1 + 0.5 * strength) / Math.sqrt(Math.max(crossed, 1));
      view.threads.append(thread);
    }));
  }

  // The chosen word's width is shared out among its weights, and each share flows to the word it belongs to.
  function drawRibbons(choice) {
    const { view, side, index } = choice;
    const all = boxes(view);
    const from = all[side][index];
    const weights = weightsOf(choice);
    const scale = from.width / Math.max(1, weights.reduce((sum, weight) => sum + weight, 0));
    const order = weights.map((_, i) => i).filter((i) => weights[i] >= least(weights));
    order.sort((a, b) => all[other(side)][a].left - all[other(side)][b].left);
    let start = from.left + (from.width - scale * weights.reduce((sum, weight) => sum + weight, 0)) / 2;
    for (const i of order) {
      const to = all[other(side)][i];
      const share = weights[i] * scale;
      const reach = Math.max(weights[i] * to.width, 1.5);
      const left = to.left + (to.width - reach) / 2;
      const [y1, y2] = side === "target" ? [from.top, to.bottom] : [from.bottom, to.top];
      const middle = (y1 + y2) / 2;
      const ribbon = path("ribbon",
        `M${start} ${y1}C${start} ${middle} ${left} ${middle} ${left} ${y2}H${left + reach}` +
        `C${left + reach} ${middle} ${start + share} ${middle} ${start + share} ${y1}Z`);
      ribbon.style.fillOpacity = 0.2 + 0.5 * weights[i];
      view.threads.append(ribbon);
      start += share;
    }
  }

  // ---- The matrix, built when it is unfolded --------------------------------------------------------------------

  function matrixOf(view) {
    const details = create("details");
    details.append(create("summary", "", "Matrix"));
    details.addEventListener("toggle", () => {
      if (details.open && !details.querySelector("table")) details.append(matrixTable(view));
    });
    return details;
  }

  function matrixTable(view) {
    const { source, target } = view.tokens;
    const table = create("table", source.length > 24 ? "matrix dense" : "matrix");
    table.append(create("caption", "unseen", "Weight of each source word (columns) for each word of the translation (rows)"));
    const head = table.createTHead().insertRow();
    head.append(create("td", "corner"));
    for (const token of source) {
      const cell = create("th");
      const upright = /[\p{Script=Han}\p{Script=Hiragana}\p{Script=Katakana}\p{Script=Hangul}]/u.test(token);
      cell.scope = "col";
      cell.append(create("span", upright ? "" : "turned", token));
      head.append(cell);
    }
    const body = table.createTBody();
    target.forEach((token, row) => {
      const line = body.insertRow();
      const name = create("th", "", token);
      name.scope = "row";
      name.dir = "auto";
      line.append(name);
      source.forEach((from, column) => {
        const weight = view.weight(row, column);
        // The colours reach up to the largest weight: in a long sentence all are small.
        const cell = create("td", weight < 0.05 * view.largest ? "faint" : "", weight.toFixed(2));
        cell.style.setProperty("--weight", weight / view.largest);
        cell.title = `${token} ← ${from}: ${weight.toFixed(3)}`;
        line.append(cell);
      });
    });
    table.addEventListener("pointerover", (event) => pointAt(view, table, event.target.closest("tbody td")));
    table.addEventListener("pointerleave", () => pointAt(view, table, null));
    const scroll = create("div", "scroll");
    scroll.tabIndex = 0;
    scroll.setAttribute("role", "region");
    scroll.setAttribute("aria-label", `Matrix of sentence ${view.number}`);
    scroll.append(table);
    return scroll;
  }

  function pointAt(view, table, cell) {
    for (const name of table.querySelectorAll("th.here")) name.classList.remove("here");
    if (!cell) return show(pinned);
    cell.parentElement.cells[0].classList.add("here");
    table.tHead.rows[0].cells[cell.cellIndex].classList.add("here");
    show({ view, side: "target", index: cell.parentElement.sectionRowIndex });
  }

  // ---- Pointer, touch and keyboard ------------------------------------------------------------------------------

  function choiceAt(element) {
    const token = element instanceof Element && element.closest(".token");
    if (!token) return null;
    return { view: views.get(token.closest(".sentence")), side: token.dataset.side, index: Number(token.dataset.index) };
  }

  function focusOn(choice) {
    const row = choice.view.elements[choice.side];
    row.forEach((element, index) => { element.tabIndex = index === choice.index ? 0 : -1; });
    row[choice.index].focus();
  }

  function nearest(choice) {
    const all = boxes(choice.view);
    const from = all[choice.side][choice.index];
    const distance = (box) => Math.abs(box.left + box.width / 2 - from.left - from.width / 2);
    return all[other(choice.side)].reduce((best, box, index, row) => (distance(box) < distance(row[best]) ? index : best), 0);
  }

  function moved(choice, key) {
    const last = choice.view.tokens[choice.side].length - 1;
    const forward = getComputedStyle(choice.view.elements[choice.side][0].parentElement).direction === "rtl" ? "ArrowLeft" : "ArrowRight";
    const across = { ArrowDown: "source", ArrowUp: "target" }[key] === choice.side;
    if (across && choice.view.tokens[other(choice.side)].length) return { ...choice, side: other(choice.side), index: nearest(choice) };
    if (key === "Home") return { ...choice, index: 0 };
    if (key === "End") return { ...choice, index: last };
    if (key !== "ArrowLeft" && key !== "ArrowRight") return null;
    return { ...choice, index: Math.min(Math.max(choice.index + (key === forward ? 1 : -1), 0), last) };
  }

  function onKey(event) {
    if (event.key === "Escape" && pinned) return pin(pinned);
    const choice = choiceAt(event.target);
    if (!choice || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") pin(choice);
    else {
      const next = moved(choice, event.key);
      if (!next) return;
      focusOn(next);
    }
    event.preventDefault();
  }

  function onFocus(event) {
    const choice = choiceAt(event.target);
    if (!choice || !event.target.matches(":focus-visible")) return;
    show(choice);
    say(choice);
  }

  document.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch" || event.target.closest?.(".matrix")) return;
    show(choiceAt(event.target) || pinned);
  });
  document.documentElement.addEventListener("pointerleave", () => show(pinned));
  document.addEventListener("click", (event) => {
    if (String(getSelection()).trim()) return;      // the reader is selecting text
    const choice = choiceAt(event.target);
    if (choice) pin(choice);
    else if (pinned && !event.target.closest("a, summary, input, .matrix")) pin(pinned);
  });
  document.addEventListener("keydown", onKey);
  document.addEventListener("focusin", onFocus);
  document.addEventListener("focusout", (event) => { if (choiceAt(event.target)) show(pinned); });

  // ---- Filter ---------------------------------------------------------------------------------------------------

  const articles = [...document.querySelectorAll(".sentence")];
  const fold = (text) => text.normalize("NFKD").toLowerCase().replace(/\p{M}/gu, "").replace(/ı/gu, "i");
  let folded = null;

  function filter(wanted) {
    folded ??= articles.map((article) => fold([...article.querySelectorAll(".text, .reference p")].map((p) => p.textContent).join("\n")));
    const words = fold(wanted).split(/\s+/u).filter(Boolean);
    let found = 0;
    articles.forEach((article, index) => {
      article.hidden = !words.every((word) => folded[index].includes(word));
      found += !article.hidden;
    });
    document.getElementById("nothing").hidden = found > 0 || !articles.length;
    const count = document.getElementById("count");
    count.dataset.all ??= count.textContent;
    count.textContent = words.length ? `${found} of ${count.dataset.all}` : count.dataset.all;
    announce.textContent = count.textContent;
  }

  document.getElementById("search").addEventListener("input", (event) => filter(event.target.value));

  // ---- Start ----------------------------------------------------------------------------------------------------

  const sizes = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const view = views.get(target.closest(".sentence"));
      drawRest(view);
      if (shown?.view === view) drawRibbons(shown);
    }
  });
  const near = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      near.unobserve(entry.target);
      build(entry.target);
    }
  }, { rootMargin: "800px 0px" });

  // Sentences above take their true heights as they come into view, so one step does not always arrive.
  function settleOn(article, steps = 5) {
    article.scrollIntoView({ block: "center" });
    if (steps) requestAnimationFrame(() => settleOn(article, steps - 1));
  }

  function followHash() {
    const found = /^#s(\d+)\.([st])(\d+)$/u.exec(location.hash);
    const article = found && document.getElementById(`s${found[1]}`);
    if (!article) return;
    const choice = { view: build(article), side: found[2] === "t" ? "target" : "source", index: Number(found[3]) - 1 };
    if (!choice.view.elements[choice.side][choice.index]) return;
    history.scrollRestoration = "manual";
    settleOn(article);
    if (!same(choice, pinned)) pin(choice);
  }

  for (const element of document.querySelectorAll(".tools, .hint")) element.hidden = !articles.length;
  for (const article of articles) near.observe(article);
  addEventListener("hashchange", followHash);
  followHash();
})();
