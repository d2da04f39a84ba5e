/** Entry point of the page and of the notebook widgets. The decoder imports no pictures, lessons or page. */
import { startPage } from "./page/app";
import { render } from "./widget/widget";

export { agreed, unitsOf } from "./decoder/alignment";
export { flagsOf } from "./decoder/confidence";
export { sentencesOf } from "./decoder/lines";
export { carry, parse } from "./decoder/markup";
export { Refusal } from "./decoder/refusal";
export { elided, Line, occurrences, usedSpans } from "./decoder/terms";
export { DEFAULT, NOTHING, Translator, type Translation } from "./decoder/translator";
export { predicted } from "./lessons/regression";
export { mount } from "./page/app";
export { rowsOf, tsvOf } from "./page/table";
export { TileMap } from "./pictures/tiles/tilemap";

export default { render };

if (typeof document !== "undefined") startPage();
