/** The translator alive in one page. The decoder stands alone; the pictures, the lessons and the page are built on it. */
import { begin } from "./page/app";

export { Refusal } from "./decoder/refusal";
export { DEFAULT, NOTHING, Translator, type Translation } from "./decoder/translator";
export { predicted } from "./lessons/regression";
export { mount } from "./page/app";

if (typeof document !== "undefined") begin();
