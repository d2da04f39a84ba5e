// The playground's kernel regression, for the tests: JSON in, JSON out.
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

const { predicted } = await import(fileURLToPath(new URL("../../src/dikkat/show/living.js", import.meta.url)));
const { x, y, queries, kernel, bandwidth } = JSON.parse(await text(process.stdin));
process.stdout.write(JSON.stringify(queries.map((query) => predicted(x, y, query, kernel, bandwidth))));
