// Answers in their context: question-answering.

import { element } from "../dom.js";
import { agreement, largestDifference } from "./agreement.js";
import { bars } from "./bars.js";
import { markedText } from "./marked_text.js";

export function render({ spans }, { text_pair: context }) {
  const shown = element("div");
  const show = (index) => {
    const span = spans[index];
    const marks = span.end > span.start ? [span] : [];
    shown.replaceChildren(markedText(context, marks, (_, part) => element("mark", { class: "answer" }, part)));
  };
  show(0);
  const list = bars(spans.map((span, index) => ({ ...span, chosen: index === 0 })), show);
  return element("div", {}, shown, element("p", { class: "hint" }, "Choose an answer to see it in the context."), list);
}

export function compare(first, second) {
  const [scores, others] = [first, second].map(({ spans }) => spans.map((span) => [`${span.start} ${span.end}`, span.score]));
  return agreement(scores[0][0] === others[0][0], "answer", largestDifference(scores, others));
}
