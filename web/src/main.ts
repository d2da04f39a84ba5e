/** The translator alive in one page, or in a notebook. The decoder stands alone; the pictures, the lessons and the page are built on it. */
import { begin } from "./page/app";
import { render } from "./widget/widget";

export { Refusal } from "./decoder/refusal";
export { DEFAULT, NOTHING, Translator, type Translation } from "./decoder/translator";
export { predicted } from "./lessons/regression";
export { mount } from "./page/app";
export { TileMap } from "./pictures/tiles/tilemap";

export default { render };

if (typeof document !== "undefined") begin();
