// Translates what comes in on standard input with the model of a page, for the tests: JSON in, JSON out.
//   node translate.mjs PAGE < [{"text": …, "options": {…}, "plain": false, "entities": {"&lt;": "<", …}}, …]
import { readFile } from "node:fs/promises";
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

const built = fileURLToPath(new URL("../../src/dikkat/show/living.js", import.meta.url));
const { Translator, DEFAULT, NOTHING, flagsOf, elided, Line, occurrences, usedSpans } = await import(built);
const END = 3;
const page = await readFile(process.argv[2], "utf8");
const model = /<script id="dikkat-model"[^>]*>([^<]*)</.exec(page)[1];
const asked = JSON.parse(await text(process.stdin));
const translators = {};
const found = [];
const ended = (going) => {
  for (;;) {
    const { done, value } = going.next();
    if (done) return value;
  }
};
for (const { text, options = {}, plain = false, chosen, entities, given, before, knows, line, corrections = [] } of asked) {
  try {
    const translator = (translators[plain] ??= await Translator.unpack(model, plain));
    const corrected = corrections.map((pair) => translator.correct(...pair).map(({ source, target }) => [source, target]));
    const pins = new Map((chosen?.pins ?? []).map(([step, each]) => [step, new Map(each)]));
    const own = { ...DEFAULT, ...options, chosen: chosen ? { tokens: chosen.tokens ?? [], pins } : NOTHING };
    const started = performance.now();
    const best = translator.translate(text, own, entities ? (reference) => entities[reference] : null);
    const forming = options.forming ? [...translator.translating(text, own)].map((unfinished) => unfinished()) : [];
    const [terms, source, target] = line ?? [[], "", ""];
    const unfinished = new Line(terms, source, target, translator.target, false);
    const candidates = line && !unfinished.isDone ? unfinished.useNext(Array(1000).fill([0, 0])).next().value ?? [] : [];
    const missing = new Line(terms, source, target, translator.target, true).unused;
    const matched = { occurrences: occurrences(terms, source), used: usedSpans(terms, source, target, translator.target.forms), missing };
    const { network } = translator;
    const votes = (each) => each.steps.map((step) => [...network.votes(each.sourceIds, step.weights, step.token)]);
    const seconds = (performance.now() - started) / 1000;
    found.push({
      seconds, corrected, forming, matched, candidates, left: unfinished.unused, checksum: translator.checksum, elided: before === undefined ? [] : elided(before, knows ? { knows: () => true } : translator.target),
      kind: translator.network.arithmetic.kind,
      source: translator.encode(text),
      weighed: given === undefined ? [] : ended(translator.weighing(text, given)),
      best: best.map((each) => ({
        ids: each.ids, target: each.target, score: each.score, finished: each.finished, repeated: each.repeated, unknown: each.unknown,
        tokens: each.targetTokens.filter((_, k) => each.ids[k] !== END),
        weights: options.light ? [] : each.steps.flatMap(({ weights }, k) => (each.ids[k] === END ? [] : [[...weights]])),
        confidence: each.confidence, flags: [...flagsOf(each).keys()], lost: each.lost, invented: each.invented, unused: each.unusedTerms,
        votes: options.votes ? votes(each) : [],
        sources: options.light ? [] : each.steps.flatMap(({ sources }, k) => (k in each.ids && each.ids[k] !== END ? [sources] : [])),
      })),
    });
  } catch (error) {
    found.push({ error: error.reason ?? String(error), detail: error.detail ?? error.stack });
  }
}
process.stdout.write(JSON.stringify(found));
