// All layers and heads as small maps, numbered from 0 as in bert_runtime: one button each, in a grid that arrow keys move in.

import { element } from "../dom.js";
import { colorScale } from "./colors.js";

/** Draw a head's map, a pixel for each pair of tokens. */
function paint(canvas, weights, layer, head) {
  const size = weights.tokens.length;
  canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  const color = colorScale();
  for (let query = 0; query < size; query += 1) {
    for (let key = 0; key < size; key += 1) {
      context.fillStyle = color(weights.at(layer, head, query, key));
      context.fillRect(key, query, 1, 1);
    }
  }
}

/** The grid of small maps. */
export class Overview {
  /**
   * @param {Weights} weights
   * @param {function(number, number): void} onChoose told layer and head
   */
  constructor(weights, onChoose) {
    this.weights = weights;
    this.buttons = [];
    this.onChoose = onChoose;
    const rows = Array.from({ length: weights.numLayers }, (_, layer) => this.#makeRow(layer));
    this.element = element("div", { class: "overview", role: "group", "aria-label": "All layers and heads" }, ...rows);
    this.element.addEventListener("keydown", (event) => this.#move(event));
  }

  #makeRow(layer) {
    const buttons = Array.from({ length: this.weights.numHeads }, (_, head) => {
      const canvas = element("canvas", { "aria-hidden": "true" });
      paint(canvas, this.weights, layer, head);
      const label = `Layer ${layer}, head ${head}`;
      return element("button", { type: "button", "aria-label": label, title: label, onclick: () => this.onChoose(layer, head) }, canvas);
    });
    this.buttons.push(buttons);
    return element("div", { class: "maps" }, element("span", { class: "number", "aria-hidden": "true" }, `Layer ${layer}`), ...buttons);
  }

  /** Mark the map that is shown large. */
  select(layer, head) {
    for (const [row, buttons] of this.buttons.entries()) {
      for (const [column, button] of buttons.entries()) {
        const chosen = row === layer && column === head;
        button.setAttribute("aria-pressed", String(chosen));
        button.tabIndex = chosen ? 0 : -1;
      }
    }
  }

  #move(event) {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    const row = this.buttons.findIndex((buttons) => buttons.includes(event.target));
    if (!step || row < 0) return;
    event.preventDefault();
    const column = this.buttons[row].indexOf(event.target);
    const next = this.buttons[row + step[0]]?.[column + step[1]];
    if (!next) return;
    next.focus();
    next.click();
  }
}
