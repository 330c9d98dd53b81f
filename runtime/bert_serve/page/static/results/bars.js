// Labels with bars, the best first.

import { element } from "../dom.js";
import { percent } from "../numbers.js";

const NUM_SHOWN = 8;

/**
 * Return a list of bars: the first few, and a button for the others.
 *
 * @param {{label: string, score: number, chosen: ?boolean}[]} items shares from 0 to 1
 * @param {?function(number): void} onChoose makes each item a button, which tells its index
 */
export function bars(items, onChoose = null) {
  const rows = items.map((item, index) => makeRow(item, index, onChoose));
  const list = element("ol", { class: "bars" }, ...rows.slice(0, NUM_SHOWN));
  if (onChoose) {
    list.addEventListener("click", (event) => press(rows, event.target.closest("button")));
    press(rows, rows[0]?.querySelector("button"));
  }
  const hidden = rows.slice(NUM_SHOWN);
  if (!hidden.length) return list;
  const more = element("button", { type: "button", class: "quiet" }, `Show ${hidden.length} more`);
  more.addEventListener("click", () => {
    more.remove();
    list.append(...hidden);
    hidden[0].querySelector("button")?.focus();
  });
  return element("div", {}, list, more);
}

function makeRow({ label, score, chosen }, index, onChoose) {
  const parts = [
    element("span", { class: "label", dir: "auto" }, label || "(no answer)"),
    element("span", { class: "value" }, percent(score)),
    element("span", { class: "track", "aria-hidden": "true" }, element("span", { class: "bar", style: { "--share": String(score) } })),
  ];
  const state = { class: chosen ? "row chosen" : "row" };
  if (!onChoose) return element("li", state, ...parts);
  return element("li", {}, element("button", { ...state, type: "button", onclick: () => onChoose(index) }, ...parts));
}

function press(rows, chosen) {
  if (!chosen) return;
  for (const row of rows) row.querySelector("button").setAttribute("aria-pressed", String(row.contains(chosen)));
}
