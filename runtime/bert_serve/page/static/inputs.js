// The fields of a task, and the inputs that are made of what is written in them.

import { element } from "./dom.js";

const TEXT = { name: "text", label: "Text", rows: 5 };

const FIELDS = {
  "question-answering": [
    { name: "question", label: "Question", rows: 2 },
    { name: "context", label: "Context", rows: 8 },
  ],
  "next-sentence-prediction": [
    { name: "text", label: "First text", rows: 3 },
    { name: "text_pair", label: "Second text", rows: 3 },
  ],
  rerank: [
    { name: "text", label: "Query", rows: 2 },
    { name: "text_pair", label: "Document", rows: 6 },
  ],
  "sentence-embedding": [{ name: "text", label: "Texts, one a line", rows: 8 }],
  "text-classification": [TEXT, { name: "text_pair", label: "Second text", rows: 3, optional: true }],
};

/** The fields for a model's task. */
export class Inputs {
  /**
   * @param {HTMLElement} parent what the fields are shown in
   * @param {{task: string, mask_token: ?string}} model
   */
  constructor(parent, model) {
    this.task = model.task;
    this.fields = FIELDS[model.task] ?? [TEXT];
    this.areas = new Map();
    parent.replaceChildren(...this.fields.map((field) => this.#makeField(field)));
    if (model.mask_token) parent.append(this.#makeMaskButton(model.mask_token));
  }

  #makeField({ name, label, rows, optional }) {
    const id = `field-${name}`;
    const area = element("textarea", { id, rows, dir: "auto", spellcheck: "false" });
    this.areas.set(name, area);
    const parts = [element("label", { for: id }, label), area];
    if (!optional) return element("div", { class: "field" }, ...parts);
    return element("details", { class: "field" }, element("summary", {}, "Add a second text"), ...parts);
  }

  #makeMaskButton(token) {
    const insert = () => {
      const area = this.areas.get("text");
      area.setRangeText(token, area.selectionStart, area.selectionEnd, "end");
      area.focus();
    };
    return element("button", { type: "button", class: "quiet", onclick: insert }, `Insert ${token}`);
  }

  /** Return what is written, by field; nothing of a field that is folded away. */
  get values() {
    const isFolded = (area) => area.closest("details")?.open === false;
    return Object.fromEntries([...this.areas].map(([name, area]) => [name, isFolded(area) ? "" : area.value]));
  }

  /** Write into the fields. */
  fill(values) {
    for (const [name, area] of this.areas) {
      area.value = values[name] ?? "";
      const folded = area.closest("details");
      if (folded && area.value) folded.open = true;
    }
  }

  /** Return what is missing, as a sentence; null if nothing is. */
  get problem() {
    const missing = this.fields.find(({ name, optional }) => !optional && !this.areas.get(name).value.trim());
    return missing === undefined ? null : `Write something into “${missing.label}”.`;
  }

  /** Return the inputs of the model, as texts and pairs of texts. */
  get inputs() {
    const { text, text_pair, question, context } = this.values;
    if (this.task === "sentence-embedding") {
      return text.split("\n").filter((line) => line.trim()).map((line) => ({ text: line }));
    }
    if (this.task === "question-answering") return [{ text: question, text_pair: context }];
    return [text_pair ? { text, text_pair } : { text }];
  }
}
