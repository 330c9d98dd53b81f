// The tab of attention: asks for it when it is first looked at, and shows all heads small and one large.

import { fetchAttention } from "../api.js";
import { element } from "../dom.js";
import { HeadMap } from "./map.js";
import { Overview } from "./overview.js";
import { Weights } from "./weights.js";

/** The panel of the tab. */
export class AttentionTab {
  /** @param {HTMLElement} panel */
  constructor(panel) {
    this.panel = panel;
    this.model = this.inputs = this.map = null;
    this.shown = this.asked = false;
    new ResizeObserver(() => this.shown && this.map?.draw()).observe(panel);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.weights && this.#show());
  }

  /** Forget the last input; the next is of another model. */
  setModel(model) {
    this.model = model;
    this.inputs = this.map = this.weights = null;
    this.#refresh();
  }

  /** Take the inputs whose answer has just been shown. */
  setInput(inputs) {
    this.inputs = inputs;
    this.map = this.weights = null;
    this.asked = false;
    this.#refresh();
  }

  /** Tell whether the tab is the one that is shown. */
  setShown(shown) {
    this.shown = shown;
    this.#refresh();
  }

  #refresh() {
    if (!this.model || !this.shown) return;
    if (!this.model.attention) this.#explain();
    else if (!this.inputs) this.panel.replaceChildren(element("p", { class: "hint" }, "Run a text to see its attention."));
    else if (!this.asked) this.#ask(0);
  }

  #explain() {
    this.panel.replaceChildren(
      element("p", {}, "This bundle has no graph that gives attention probabilities."),
      element("p", { class: "hint" }, "Add one with the exporter; it shares the weights of the FP32 graph:"),
      element("pre", { class: "code", tabindex: "0", "aria-label": "Export command", dir: "ltr" }, element("code", {}, "bert-export export CHECKPOINT BUNDLE --attention")));
  }

  async #ask(index) {
    const { inputs, model } = this;
    this.asked = true;
    this.panel.replaceChildren(element("p", { role: "status" }, "Computing attention …"));
    try {
      const answer = await fetchAttention(model.name, inputs[index]);
      if (inputs !== this.inputs) return;
      this.weights = new Weights(answer);
      this.truncation = answer.truncated ? `Drawn for the first ${answer.tokens.length} tokens.` : null;
      [this.layer, this.head, this.index] = [0, 0, index];
      this.#show();
    } catch (error) {
      if (inputs === this.inputs) this.panel.replaceChildren(element("p", { class: "error", role: "alert" }, error.message));
    }
  }

  #show() {
    const { weights } = this;
    this.map = new HeadMap(weights);
    this.overview = new Overview(weights, (layer, head) => this.#choose(layer, head));
    this.layers = choice("Layer", "attention-layer", range(0, weights.numLayers), () => this.#choose(Number(this.layers.value), this.head));
    this.heads = choice("Head", "attention-head", range(0, weights.numHeads), () => this.#choose(this.layer, Number(this.heads.value)));
    this.panel.replaceChildren(
      element("div", { class: "choices" }, ...this.#inputChoice(), this.layers.parentElement, this.heads.parentElement),
      this.truncation ? element("p", { class: "warning" }, this.truncation) : "",
      element("div", { class: "attention" }, this.map.element,
        element("div", { class: "scroll", role: "region", "aria-label": "Small maps of all layers and heads", tabindex: "0" }, this.overview.element)));
    this.#choose(this.layer, this.head);
  }

  #inputChoice() {
    if (this.inputs.length === 1) return [];
    const select = choice("Text", "attention-text", range(1, this.inputs.length), () => this.#ask(Number(select.value)));
    select.value = String(this.index);
    return [select.parentElement];
  }

  #choose(layer, head) {
    [this.layer, this.head] = [layer, head];
    this.layers.value = String(layer);
    this.heads.value = String(head);
    this.overview.select(layer, head);
    this.map.show(layer, head);
  }
}

/** Return numbers in order. */
function range(first, length) {
  return Array.from({ length }, (_, index) => first + index);
}

/** Return a select, whose values are indices, in a span with its label. */
function choice(name, id, names, onChange) {
  const options = names.map((shown, index) => element("option", { value: String(index) }, String(shown)));
  const select = element("select", { id, onchange: onChange }, ...options);
  element("span", { class: "choice" }, element("label", { for: id }, name), select);
  return select;
}
