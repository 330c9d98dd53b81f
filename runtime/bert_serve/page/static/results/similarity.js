// Cosine similarities of several texts, or of the tokens of one, as a heat map: sentence-embedding, feature-extraction.

import { element } from "../dom.js";

const NUM_VALUES = 8;

export function render({ matrix, vectors, labels }, _, inputs) {
  const names = labels ?? inputs.map(({ text }) => text);
  const numbers = names.map((_, index) => element("th", { scope: "col" }, String(index + 1)));
  const rows = matrix.map((row, index) =>
    element("tr", {},
      element("th", { scope: "row" }, element("span", { class: "number" }, String(index + 1)), element("bdi", { title: names[index] }, names[index])),
      ...row.map(cell)));
  const table = element("table", { class: "heat" },
    element("caption", {}, "Cosine similarity"),
    element("thead", {}, element("tr", {}, element("td"), ...numbers)), element("tbody", {}, ...rows));
  const scroll = element("div", { class: "scroll", role: "region", "aria-label": "Cosine similarity", tabindex: "0" }, table);
  const hint = names.length === 1 && !labels ? element("p", { class: "hint" }, "Write a second line to compare it with the first.") : null;
  return element("div", {}, scroll, hint, vectors.length ? embedding(vectors[0], labels ? "token" : "text") : null);
}

function cell(value) {
  const share = Math.min(1, Math.max(0, value));
  return element("td", { style: { "--share": String(share) } }, value.toFixed(2));
}

function embedding(vector, noun) {
  const norm = Math.sqrt(vector.reduce((sum, value) => sum + value * value, 0));
  const values = vector.slice(0, NUM_VALUES).map((value) => value.toFixed(4)).join(", ");
  return element("details", {}, element("summary", {}, `Embedding of the first ${noun}: ${vector.length} dimensions, length ${norm.toFixed(3)}`),
    element("code", {}, `[${values}${vector.length > NUM_VALUES ? ", …" : ""}]`));
}

export function compare(first, second) {
  const largest = Math.max(...first.matrix.flatMap((row, i) => row.map((value, j) => Math.abs(value - second.matrix[i][j]))));
  return `Similarities differ by at most ${largest.toFixed(4)}.`;
}
