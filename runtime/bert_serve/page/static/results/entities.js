// Entities in their text, with a legend: token-classification.

import { element } from "../dom.js";
import { percent } from "../numbers.js";
import { agreement, largestDifference } from "./agreement.js";
import { markedText } from "./marked_text.js";

const NUM_COLORS = 8;
const NUM_STYLES = 4; // of the line below, which tells apart what has the same color

export function render({ spans }, { text }) {
  const labels = [...new Set(spans.map((span) => span.label))].sort();
  const styleOf = (label) => {
    const index = labels.indexOf(label);
    return `entity color-${index % NUM_COLORS} line-${Math.floor(index / NUM_COLORS) % NUM_STYLES}`;
  };
  const marked = markedText(text, spans, ({ label }, part) =>
    element("mark", { class: styleOf(label) }, part, element("span", { class: "tag" }, element("bdi", {}, label))));
  if (!spans.length) return element("div", {}, marked, element("p", { class: "hint" }, "No entities."));
  const legend = labels.map((label) => {
    const number = spans.filter((span) => span.label === label).length;
    return element("li", {}, element("span", { class: styleOf(label) }, element("bdi", {}, label)), ` × ${number}`);
  });
  const rows = spans.map(({ label, score, start, end }) =>
    element("tr", {}, element("td", { dir: "auto" }, Array.from(text).slice(start, end).join("")),
      element("td", {}, element("bdi", {}, label)), element("td", { class: "value" }, percent(score))));
  return element("div", {}, marked, element("ul", { class: "legend", "aria-label": "Labels" }, ...legend),
    element("table", { class: "list" }, head("Entity", "Label", "Score"), element("tbody", {}, ...rows)));
}

function head(...titles) {
  return element("thead", {}, element("tr", {}, ...titles.map((title) => element("th", { scope: "col" }, title))));
}

export function compare(first, second) {
  const [scores, others] = [first, second].map(({ spans }) => spans.map((span) => [[span.start, span.end, span.label].join(" "), span.score]));
  return agreement(String(scores.map(([key]) => key)) === String(others.map(([key]) => key)), "entities", largestDifference(scores, others));
}
