// The table that a page saves, for the tests: rows in, text out, both as JSON.
import { text } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

const { tsvOf } = await import(fileURLToPath(new URL("../../src/dikkat/show/living.js", import.meta.url)));
process.stdout.write(JSON.stringify(tsvOf(JSON.parse(await text(process.stdin)))));
