// One head's map: a cell for each pair of tokens. The pointer and the arrow keys choose a cell, which is read out below.

import { element } from "../dom.js";
import { percent } from "../numbers.js";
import { colorScale } from "./colors.js";

const MAX_CELL = 26;
const MIN_CELL = 7;
const MIN_LABEL_CELL = 10; // smaller cells leave no room for the tokens
const LABEL_CHARACTERS = 12;
const FONT = "system-ui, sans-serif";

/** The map of one layer and head. */
export class HeadMap {
  /** @param {Weights} weights */
  constructor(weights) {
    this.weights = weights;
    this.layer = this.head = 0;
    this.cell = null; // chosen query and key
    this.canvas = element("canvas", { tabindex: "0", role: "img" });
    this.reading = element("p", { class: "reading", role: "status" });
    this.scroll = element("div", { class: "scroll" }, this.canvas);
    this.element = element("div", { class: "map" }, this.scroll, this.reading);
    this.canvas.addEventListener("pointermove", (event) => this.#choose(this.#cellAt(event)));
    this.canvas.addEventListener("pointerdown", (event) => this.#choose(this.#cellAt(event)));
    this.canvas.addEventListener("keydown", (event) => this.#move(event));
  }

  /** Show a layer and head. */
  show(layer, head) {
    [this.layer, this.head] = [layer, head];
    this.canvas.setAttribute("aria-label", `Attention of layer ${layer}, head ${head}: arrow keys choose a pair of tokens`);
    this.draw();
    this.#read();
  }

  /** Draw everything for the width that there is. */
  draw() {
    const size = this.weights.tokens.length;
    const width = (this.scroll.clientWidth || 320) - 10; // without the padding around the focus ring
    const labels = this.weights.tokens.map(({ token }) => shortened(token));
    const context = this.canvas.getContext("2d");
    context.font = `12px ${FONT}`;
    const widest = Math.ceil(Math.max(...labels.map((label) => context.measureText(label).width))) + 8;
    this.cellSize = Math.max(MIN_CELL, Math.min(MAX_CELL, Math.floor((width - widest) / size)));
    this.margin = this.cellSize >= MIN_LABEL_CELL ? widest : 0;
    const side = this.margin + size * this.cellSize;
    const ratio = window.devicePixelRatio || 1;
    this.canvas.width = this.canvas.height = side * ratio;
    this.canvas.style.setProperty("width", `${side}px`);
    this.canvas.style.setProperty("height", `${side}px`);
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.#drawCells(context);
    this.#drawBoundary(context);
    if (this.margin) this.#drawLabels(context, labels);
    if (this.cell) this.#drawFrame(context, this.cell);
  }

  #drawCells(context) {
    const color = colorScale();
    const size = this.weights.tokens.length;
    for (let query = 0; query < size; query += 1) {
      for (let key = 0; key < size; key += 1) {
        context.fillStyle = color(this.weights.at(this.layer, this.head, query, key));
        context.fillRect(...this.#corner(query, key), this.cellSize - 1, this.cellSize - 1);
      }
    }
  }

  /** Draw dashed lines where the second text of a pair begins. */
  #drawBoundary(context) {
    const first = this.weights.tokens.findIndex(({ text }) => text === 1);
    if (first < 0) return;
    const at = this.margin + first * this.cellSize - 0.5;
    const end = this.margin + this.weights.tokens.length * this.cellSize;
    context.strokeStyle = getComputedStyle(this.canvas).color;
    context.lineWidth = 1;
    context.setLineDash([4, 3]);
    for (const [x, y] of [[this.margin, at], [at, this.margin]]) {
      context.beginPath();
      context.moveTo(x, y);
      context.lineTo(x === at ? at : end, x === at ? end : at);
      context.stroke();
    }
    context.setLineDash([]);
  }

  #drawLabels(context, labels) {
    context.fillStyle = getComputedStyle(this.canvas).color;
    context.font = `${Math.min(12, this.cellSize)}px ${FONT}`;
    context.textBaseline = "middle";
    for (const [index, label] of labels.entries()) {
      const [x, y] = this.#corner(index, index).map((value) => value + this.cellSize / 2);
      context.textAlign = "right";
      context.fillText(label, this.margin - 5, y);
      context.save();
      context.translate(x, this.margin - 5);
      context.rotate(-Math.PI / 2);
      context.textAlign = "left";
      context.fillText(label, 0, 0);
      context.restore();
    }
  }

  #drawFrame(context, [query, key]) {
    const [x, y] = this.#corner(query, key);
    context.strokeStyle = getComputedStyle(this.canvas).color;
    context.lineWidth = 2;
    context.strokeRect(x - 0.5, y - 0.5, this.cellSize, this.cellSize);
  }

  #corner(query, key) {
    return [this.margin + key * this.cellSize, this.margin + query * this.cellSize];
  }

  #cellAt({ offsetX, offsetY }) {
    const [key, query] = [offsetX, offsetY].map((value) => Math.floor((value - this.margin) / this.cellSize));
    const inside = (index) => index >= 0 && index < this.weights.tokens.length;
    return inside(query) && inside(key) ? [query, key] : null;
  }

  #move(event) {
    const step = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowDown: [1, 0], ArrowUp: [-1, 0] }[event.key];
    if (!step) return;
    event.preventDefault();
    const last = this.weights.tokens.length - 1;
    this.#choose(this.cell ? this.cell.map((index, axis) => Math.min(last, Math.max(0, index + step[axis]))) : [0, 0]);
  }

  #choose(cell) {
    if (String(cell) === String(this.cell)) return;
    this.cell = cell;
    this.draw();
    this.#read();
  }

  #read() {
    if (!this.cell) {
      this.reading.replaceChildren("Rows attend to columns. Point at a cell, or use the arrow keys in the map.");
      return;
    }
    const [query, key] = this.cell;
    const [from, to] = this.cell.map((index) => element("bdi", { class: "token" }, this.weights.tokens[index].token));
    const weight = this.weights.at(this.layer, this.head, query, key);
    this.reading.replaceChildren(from, ` (${query + 1}) attends to `, to, ` (${key + 1}): `, element("strong", {}, percent(weight)));
  }
}

function shortened(token) {
  const characters = Array.from(token);
  return characters.length <= LABEL_CHARACTERS ? token : `${characters.slice(0, LABEL_CHARACTERS - 1).join("")}…`;
}
