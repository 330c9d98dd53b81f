// The answers of one precision or several, side by side.

import { element } from "./dom.js";
import { milliseconds } from "./numbers.js";
import { RESULTS } from "./results/index.js";

/**
 * Return the view of answers to the same inputs.
 *
 * @param {{precision: string, served: boolean, answer: Object}[]} columns
 * @param {{text: string, text_pair: ?string}[]} inputs
 */
export function answerView(columns, inputs) {
  const parts = columns.map((column) => columnView(column, inputs));
  const view = element("div", { class: "columns" }, ...parts);
  return columns.length < 2 ? view : element("div", {}, comparison(columns), view);
}

function columnView({ precision, served, answer }, inputs) {
  const { render } = RESULTS[answer.result.kind];
  const { tokenize, inference } = answer.times_ms;
  const runs = answer.num_runs === 1 ? "one run" : `median of ${answer.num_runs} runs`;
  return element("article", { "aria-label": precision.toUpperCase() },
    element("h2", {}, precision.toUpperCase(), served ? element("span", { class: "badge" }, "served") : null),
    element("p", { class: "times" }, element("strong", {}, milliseconds(inference)), ` for the model (${runs}), ${milliseconds(tokenize)} for the tokenizer`),
    render(answer.result, inputs[0], inputs));
}

function comparison(columns) {
  const [first, ...others] = columns;
  const sentences = others.map((other) => {
    const { compare } = RESULTS[first.answer.result.kind];
    const common = compare(first.answer.result, other.answer.result);
    return element("li", {}, `${first.precision.toUpperCase()} and ${other.precision.toUpperCase()}: ${common} ${speed(first, other)}`);
  });
  return element("ul", { class: "comparison" }, ...sentences);
}

function speed(...pair) {
  const [fast, slow] = pair.sort((first, second) => first.answer.times_ms.inference - second.answer.times_ms.inference);
  const factor = slow.answer.times_ms.inference / fast.answer.times_ms.inference;
  if (factor < 1.05) return "Both take the same time.";
  return `${fast.precision.toUpperCase()} is ${factor.toFixed(1)}× as fast.`;
}
