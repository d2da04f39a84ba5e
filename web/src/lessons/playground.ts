/** The tab of the lessons, which need no model. */
import { h } from "../page/dom";
import { compareLesson } from "./compare";
import { maskedLesson } from "./masked";
import { regressionLesson } from "./regression";

export const playground = (): HTMLElement =>
  h("main", { id: "room" }, regressionLesson(), compareLesson(), maskedLesson());
