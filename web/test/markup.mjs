// Carries tags over to given translations as the page does, for the tests: JSON in, JSON out.
//   node markup.mjs < {"entities": {"&lt;": "<", …}, "cases": [{"marked": …, "target": …, "weights": [[…], …]}, {"line": …}, …]}
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

const built = fileURLToPath(new URL("../../src/dikkat/show/living.js", import.meta.url));
const { agreed, carry, parse, sentencesOf, unitsOf } = await import(built);
const { entities, cases } = JSON.parse(await text(process.stdin));
const found = cases.map(({ marked, line, target, weights }) => {
  try {
    if (marked === undefined) return sentencesOf(line).map(({ sentence, space }) => [sentence, space]);
    const { text, root } = parse(marked, (reference) => entities[reference]);
    const [source, units] = [text, target].map((text) => unitsOf(text));
    const said = ({ spans, isWord }, whole) => spans.map((span, k) => [whole.slice(...span), isWord[k]]);
    return {
      text, source: said(source, text), units: said(units, target),
      carried: carry(root, target, weights, source, units), agreed: agreed(weights),
    };
  } catch (error) {
    return { error: error.reason ?? error.stack, detail: error.detail, open: error.open };
  }
});
process.stdout.write(JSON.stringify(found));
