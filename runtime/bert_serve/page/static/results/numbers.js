// Predicted numbers: of regression, and the weights of a sparse vector.

import { element } from "../dom.js";
import { largestDifference } from "./agreement.js";

export function render({ items }) {
  const rows = items.map(({ label, score }) =>
    element("div", {}, element("dt", { dir: "auto" }, label), element("dd", {}, score.toFixed(4))));
  return element("dl", { class: "numbers" }, ...rows);
}

export function compare(first, second) {
  const scores = ({ items }) => items.map(({ label, score }) => [label, score]);
  const largest = largestDifference(scores(first), scores(second), 0);
  return `Numbers differ by at most ${largest.toFixed(4)}.`;
}
