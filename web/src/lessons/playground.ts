/** The tab of the lessons, which need no model. */
import { h } from "../page/dom";
import { createScoringLesson } from "./compare";
import { createMaskingLesson } from "./masked";
import { createRegressionLesson } from "./regression";

export const createPlayground = (): HTMLElement =>
  h("main", { id: "room" }, createRegressionLesson(), createScoringLesson(), createMaskingLesson());
