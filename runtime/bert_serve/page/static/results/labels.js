// Labels with their probabilities: text-classification, next-sentence-prediction.

import { element } from "../dom.js";
import { agreement, largestDifference } from "./agreement.js";
import { bars } from "./bars.js";

export function render({ items, model }) {
  if (!model) return bars(items);
  return element("div", {}, bars(items), element("p", {}, `The ${model} model of the cascade answered.`));
}

export function compare(first, second) {
  const [chosen, others] = [first, second].map(({ items }) => items.filter((item) => item.chosen).map((item) => item.label).sort());
  const [scores, otherScores] = [first, second].map(({ items }) => items.map(({ label, score }) => [label, score]));
  return agreement(chosen.join("\n") === others.join("\n"), chosen.length === 1 ? "label" : "labels", largestDifference(scores, otherScores));
}
