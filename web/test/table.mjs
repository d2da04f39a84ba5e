// The table that a page saves, for the tests: rows in, text out, both as JSON. A text as input gives its rows.
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

const { rowsOf, tsvOf } = await import(fileURLToPath(new URL("../../src/dikkat/show/living.js", import.meta.url)));
const table = JSON.parse(await text(process.stdin));
process.stdout.write(JSON.stringify(typeof table === "string" ? rowsOf(table) : tsvOf(table)));
