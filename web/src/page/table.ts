/** Tables of sentence pairs or terms, as saved by the page or copied from a spreadsheet. */
import { oneSpaced } from "../decoder/tokenizer";

/** Python's `COLUMN_NAME`. */
const COLUMN_NAME = new RegExp(
  "^(?:(?:(?:ar|bg|ca|cs|cy|da|de|el|en|es|et|eu|fa|fi|fr|ga|he|hi|hr|hu|id|it|ja|ko|la|lt|lv|nb|nl|no|pl|" +
  "pt|ro|ru|sk|sl|sr|sv|th|tr|uk|vi|zh)(?:[-_][a-z]{2,4})?|arabic|chinese|czech|danish|dutch|english|finnish|french|" +
  "german|greek|hebrew|hindi|hungarian|italian|japanese|korean|latin|norwegian|persian|polish|portuguese|romanian|" +
  "russian|spanish|swedish|turkish|ukrainian|vietnamese|welsh)|source|target|src|trg|tgt|translation|text|sentence)" +
  "(?:[ _-](?:text|sentence|source|target|language))?$", "i");

/** True if a table's first row has column names, such as English and French. */
function isHeader([source, target]: readonly string[]): boolean {
  const names = [source!.trim(), target!.trim()];
  return names[0] !== names[1] && names.every((name) => COLUMN_NAME.test(name));
}

/** A table of sentence pairs for Python's `TsvCorpus`. All cells are quoted if one contains a quotation mark. */
export function tsvOf(pairs: readonly (readonly string[])[]): string {
  const rows = pairs.map((row) => row.map(oneSpaced));
  const areQuoted = rows.some((row) => row.some((text) => text.includes('"')));
  const lines = rows.map((row) => row.map((text) => (areQuoted ? `"${text.replaceAll('"', '""')}"` : text)).join("\t"));
  // Without column names, a first pair such as "text, translation" would be read as names.
  return [...(rows[0] && isHeader(rows[0]) ? ["source\ttarget"] : []), ...lines].map((line) => `${line}\n`).join("");
}

/** The first two cells of a table's rows, without column names; empty if the text has no tabs. */
export function rowsOf(table: string): [string, string][] {
  const rows: string[][] = [[]];
  for (const [, quoted, plain, end] of table.matchAll(/(?:"([^"]*(?:""[^"]*)*)"|([^\t\r\n]*))(\t|[\r\n]+|$)/g)) {
    rows.at(-1)!.push(quoted?.replaceAll('""', '"') ?? plain!);
    if (end !== "\t") rows.push([]);
  }
  const pairs = rows.filter(({ length }) => length > 1).map(([source, target]): [string, string] => [source!, target!]);
  return pairs.slice(Number(pairs.length > 1 && isHeader(pairs[0]!)));
}
