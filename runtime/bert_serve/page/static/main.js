// The page: choose a model, write a text, run, and look at the answer.

import { fetchModels, fetchPrediction, setKey } from "./api.js";
import { answerView } from "./answer.js";
import { AttentionTab } from "./attention/tab.js";
import { byId, element } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { Inputs } from "./inputs.js";
import { count } from "./numbers.js";
import { requestView } from "./request_view.js";
import { makeTabs } from "./tabs.js";
import { tokensView } from "./tokens.js";

const READY_CHECK_MS = 1000;

let server = { models: [], paths: [], needs_key: false };
let model = null;
let inputs = null;
let numExamples = 0;
let runNumber = 0; // so that a late answer does not replace a newer one
let isRunning = false;
let waitsForServer = false; // the error that is shown says so

const attention = new AttentionTab(byId("panel-attention"));

/** Ask the server for its models until all are ready. */
async function loadModels() {
  try {
    server = await fetchModels();
  } catch (error) {
    showError(error.status === 401 ? refusedKey() : error.message);
    waitsForServer = true;
    if (error.status !== 401) setTimeout(loadModels, READY_CHECK_MS);
    return;
  }
  if (waitsForServer) showError(null);
  waitsForServer = false;
  byId("key-area").hidden = !server.needs_key;
  showModels();
  if (server.models.some(({ ready }) => !ready)) setTimeout(loadModels, READY_CHECK_MS);
}

function showModels() {
  const select = byId("model");
  const chosen = select.value;
  select.replaceChildren(...server.models.map(({ name, ready }) =>
    element("option", { value: name, disabled: !ready }, ready ? name : `${name} (loading)`)));
  const ready = server.models.filter((served) => served.ready);
  select.disabled = !ready.length;
  byId("run").disabled = !ready.length || isRunning;
  if (!ready.length) return showStatus("The models are being loaded.");
  select.value = ready.some(({ name }) => name === chosen) ? chosen : ready[0].name;
  if (select.value !== model?.name) chooseModel(select.value);
}

function chooseModel(name) {
  model = server.models.find((served) => served.name === name);
  inputs = new Inputs(byId("fields"), model);
  numExamples = 0;
  runNumber += 1;
  const facts = [model.task, `up to ${count(model.max_tokens, "token")}`, `${model.precisions[0].toUpperCase()} on ${model.device.toUpperCase()}`];
  byId("facts").textContent = facts.join(" · ");
  byId("example").hidden = !(model.task in EXAMPLES);
  showPrecisions();
  for (const panel of document.querySelectorAll('[role="tabpanel"]')) panel.replaceChildren();
  attention.setModel(model);
  showError(null);
  showStatus("");
  fillExample();
  byId("panel-result").append(element("p", { class: "hint" }, "Run the text to see the answer."));
}

function showPrecisions() {
  const boxes = model.precisions.map((precision, index) => {
    const box = element("input", { type: "checkbox", name: "precision", value: precision, checked: index === 0 });
    return element("label", {}, box, ` ${precision.toUpperCase()}`, index === 0 ? element("span", { class: "badge" }, "served") : null);
  });
  byId("precisions").querySelector(".choices").replaceChildren(...boxes);
  byId("precisions").hidden = boxes.length < 2;
}

function fillExample() {
  const examples = EXAMPLES[model.task];
  if (!examples) return;
  const example = examples[numExamples % examples.length];
  numExamples += 1;
  inputs.fill(Object.fromEntries(Object.entries(example).map(([name, text]) => [name, text.replaceAll("@mask@", model.mask_token)])));
}

/** Ask for a key; return why. */
function refusedKey() {
  byId("key-area").hidden = false;
  return byId("key").value ? "The server does not accept this API key." : "The server needs an API key.";
}

/** Run the chosen precisions one after the other, so that they do not slow each other down. */
async function run() {
  const problem = inputs.problem ?? (chosenPrecisions().length ? null : "Choose a precision.");
  showError(problem);
  if (problem) return;
  const number = (runNumber += 1);
  const asked = { model, inputs: inputs.inputs };
  const columns = [];
  byId("answer").setAttribute("aria-busy", "true");
  byId("run").disabled = isRunning = true;
  try {
    for (const precision of chosenPrecisions()) {
      showStatus(`Running ${precision.toUpperCase()} …`);
      const answer = await fetchPrediction(asked.model.name, precision, asked.inputs);
      if (number !== runNumber) return;
      columns.push({ precision, served: precision === asked.model.precisions[0], answer });
      show(columns, asked);
      if (columns.length === 1) attention.setInput(asked.inputs);
    }
    showStatus("Done.", "hidden"); // for screen readers; others see the answer
  } catch (error) {
    if (number !== runNumber) return;
    showStatus("");
    showError(error.status === 401 ? refusedKey() : error.message);
  } finally {
    byId("run").disabled = isRunning = false;
    byId("answer").setAttribute("aria-busy", "false");
  }
}

function show(columns, asked) {
  byId("panel-result").replaceChildren(answerView(columns, asked.inputs));
  byId("panel-tokens").replaceChildren(tokensView(columns[0].answer.inputs, asked.inputs));
  byId("panel-request").replaceChildren(requestView(asked.model, asked.inputs, server));
}

function chosenPrecisions() {
  return [...document.querySelectorAll('input[name="precision"]:checked')].map((box) => box.value);
}

function showStatus(text, style = "") {
  byId("status").textContent = text;
  byId("status").className = style;
}

function showError(text) {
  byId("error").textContent = text ?? "";
  byId("error").hidden = text === null;
}

function listen() {
  byId("model").addEventListener("change", (event) => chooseModel(event.target.value));
  byId("example").addEventListener("click", fillExample);
  byId("form").addEventListener("submit", (event) => {
    event.preventDefault();
    run();
  });
  byId("form").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && !byId("run").disabled) run();
  });
  byId("key").addEventListener("change", (event) => {
    setKey(event.target.value);
    loadModels();
  });
  makeTabs(document.querySelector('[role="tablist"]'), (tab) => attention.setShown(tab === "tab-attention"));
}

listen();
loadModels();
