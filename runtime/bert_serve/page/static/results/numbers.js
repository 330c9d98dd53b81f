// Predicted numbers: regression.

import { element } from "../dom.js";

export function render({ items }) {
  const rows = items.map(({ label, score }) =>
    element("div", {}, element("dt", { dir: "auto" }, label), element("dd", {}, score.toFixed(4))));
  return element("dl", { class: "numbers" }, ...rows);
}

export function compare(first, second) {
  const largest = Math.max(...first.items.map(({ score }, index) => Math.abs(score - second.items[index].score)));
  return `Numbers differ by at most ${largest.toFixed(4)}.`;
}
