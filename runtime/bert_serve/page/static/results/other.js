// A result without a drawing of its own, as JSON.

import { element } from "../dom.js";

export function render({ value }) {
  return element("pre", {}, JSON.stringify(value, null, 2));
}

export function compare(first, second) {
  return JSON.stringify(first.value) === JSON.stringify(second.value) ? "Same result." : "Different results.";
}
