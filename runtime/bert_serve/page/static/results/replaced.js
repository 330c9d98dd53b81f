// How probable it is that each token was replaced: replaced-token-detection.

import { element } from "../dom.js";
import { percent } from "../numbers.js";
import { agreement, largestDifference } from "./agreement.js";
import { bars } from "./bars.js";
import { markedText } from "./marked_text.js";

export function render({ spans, threshold }, { text }) {
  const marked = markedText(text, spans, ({ score }, part) =>
    element("mark", { class: score >= threshold ? "shade chosen" : "shade", style: { "--share": String(score) }, title: percent(score) }, part));
  const items = spans.map((span) => ({ label: span.label, score: span.score, chosen: span.score >= threshold }));
  items.sort((first, second) => second.score - first.score);
  return element("div", {}, marked, element("p", { class: "hint" }, `Probability that a token was replaced; underlined from ${percent(threshold)}.`), bars(items));
}

export function compare(first, second) {
  const same = first.spans.every(({ score }, index) => (score >= first.threshold) === (second.spans[index].score >= second.threshold));
  const [scores, others] = [first, second].map(({ spans }) => spans.map(({ score }, index) => [index, score]));
  return agreement(same, "replaced tokens", largestDifference(scores, others));
}
