// The tokens as the model reads them: chips, with special tokens marked.

import { element } from "./dom.js";
import { count } from "./numbers.js";
import { direction } from "./unicode.js";

const KINDS = {
  special: "special token",
  mask: "mask",
  unknown: "not in the vocabulary",
};

/**
 * Return the tokens of all inputs.
 *
 * @param {{windows: Object[][], truncated: boolean, max_tokens: number}[]} inputs
 * @param {{text: string, text_pair: ?string}[]} texts
 */
export function tokensView(inputs, texts) {
  const views = inputs.flatMap((input, index) => inputView(input, texts[index], inputs.length > 1 ? `Text ${index + 1}: ` : ""));
  const ids = element("input", { type: "checkbox", id: "token-ids" });
  const view = element("div", { class: "tokens" },
    element("p", { class: "choices" }, element("label", {}, ids, " Show ids"), ...legend(inputs)), ...views);
  ids.addEventListener("change", () => view.classList.toggle("with-ids", ids.checked));
  return view;
}

function legend(inputs) {
  const found = new Set(inputs.flatMap(({ windows }) => windows.flat().map(({ kind }) => kind)));
  return Object.entries(KINDS).filter(([kind]) => found.has(kind))
    .map(([kind, name]) => element("span", { class: "key" }, element("span", { class: `chip ${kind}`, "aria-hidden": "true" }, " "), ` ${name}`));
}

function inputView({ windows, truncated, max_tokens }, { text }, prefix) {
  const parts = windows.flatMap((window, index) => {
    const title = windows.length === 1 ? `of at most ${max_tokens}` : `in window ${index + 1} of ${windows.length}; windows overlap`;
    return [
      element("h2", {}, `${prefix}${count(window.length, "token")} ${title}`),
      element("ol", { class: "chips", dir: direction(text) }, ...window.map(chip)),
    ];
  });
  if (!truncated) return parts;
  const warning = `The text is longer than ${max_tokens} tokens. The model does not read the rest.`;
  return [...parts, element("p", { class: "warning" }, warning)];
}

function chip({ token, id, kind, text }) {
  const second = text === 1 ? " second" : "";
  return element("li", { class: `chip ${kind}${second}`, title: KINDS[kind] },
    element("bdi", {}, token), kind === "unknown" ? element("span", { class: "hidden" }, ` (${KINDS.unknown})`) : null,
    element("span", { class: "id" }, String(id)));
}
