// The request as programs make it: curl, and Python.

const MAX_LINE = 72; // characters of what is not broken into lines

/**
 * Wire formats: the path as the server names it, the tasks that it is for (null: all), and the body.
 *
 * `fits` is whether the format is for a model and its inputs, where the task does not say it all. `client` writes Python for a package of its own; without it, `requests` sends the body.
 */
const FORMATS = [
  {
    name: "OpenAI",
    path: "/v1/embeddings",
    tasks: ["sentence-embedding"],
    body: (model, inputs) => ({ model: model.name, input: inputs.map(({ text }) => text) }),
    client: openaiClient,
  },
  {
    name: "Hugging Face pipeline",
    path: "/models/{name:path}",
    tasks: null,
    body: (model, inputs) => ({ inputs: inputs.length === 1 ? pipelineInput(model, inputs[0]) : inputs.map(({ text }) => text) }),
  },
  {
    name: "TEI",
    path: "/embed",
    tasks: ["sentence-embedding"],
    body: (model, inputs) => ({ model: model.name, inputs: inputs.map(({ text }) => text) }),
  },
  {
    name: "TEI",
    path: "/embed_all",
    tasks: ["feature-extraction"],
    body: (model, inputs) => ({ model: model.name, inputs: inputs.map(({ text }) => text) }),
  },
  {
    name: "TEI",
    path: "/predict",
    tasks: ["text-classification"],
    body: (model, [{ text, text_pair }]) => ({ model: model.name, inputs: text_pair ? [text, text_pair] : text }),
  },
  {
    name: "Cohere and Jina",
    path: "/v1/rerank",
    tasks: ["rerank", "text-classification"],
    fits: (model, [{ text_pair }]) => model.output_width === 1 && Boolean(text_pair),
    body: (model, [{ text, text_pair }]) => ({ model: model.name, query: text, documents: [text_pair] }),
  },
  {
    name: "KServe",
    path: "/v2/models/{name}/infer",
    tasks: null,
    body: (model, inputs) => ({ inputs: kserveTensors(model, inputs) }),
  },
];

function pipelineInput(model, { text, text_pair }) {
  if (model.task === "question-answering") return { question: text, context: text_pair };
  return text_pair ? { text, text_pair } : text;
}

function kserveTensors(model, inputs) {
  const [first, second] = model.task === "question-answering" ? ["question", "context"] : ["text", "text_pair"];
  const tensor = (name, data) => ({ name, shape: [data.length], datatype: "BYTES", data });
  const tensors = [tensor(first, inputs.map(({ text }) => text))];
  if (inputs[0].text_pair) tensors.push(tensor(second, inputs.map(({ text_pair }) => text_pair)));
  return tensors;
}

/** Return the formats for inputs of a model, of those whose paths a server has. */
export function formatsFor(model, inputs, paths) {
  return FORMATS.filter(({ path, tasks, fits }) =>
    paths.includes(path) && (tasks?.includes(model.task) ?? true) && (fits?.(model, inputs) ?? true));
}

/** Return the request as a shell command. */
export function curl(format, { address, model, inputs, needsKey }) {
  const lines = [
    `curl ${shellQuoted(address + pathOf(format, model))}`,
    ...(needsKey ? [`-H "Authorization: Bearer $API_KEY"`] : []),
    `-H 'Content-Type: application/json'`,
    `-d ${shellQuoted(json(format.body(model, inputs)))}`,
  ];
  return lines.join(" \\\n  ");
}

/** Return the request as a Python program. */
export function python(format, { address, model, inputs, needsKey }) {
  const body = format.body(model, inputs);
  if (format.client) return format.client(address, body, needsKey);
  const headers = needsKey ? `\n    headers={"Authorization": f"Bearer {os.environ['API_KEY']}"},` : "";
  return `${needsKey ? "import os\n\n" : ""}import requests

response = requests.post(
    ${pythonLiteral(address + pathOf(format, model))},${headers}
    json=${pythonLiteral(body, 1)},
)
response.raise_for_status()
print(response.json())
`;
}

function openaiClient(address, body, needsKey) {
  const key = needsKey ? `os.environ["API_KEY"]` : `"none"`;
  return `${needsKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${pythonLiteral(`${address}/v1`)}, api_key=${key})
response = client.embeddings.create(
    model=${pythonLiteral(body.model)},
    input=${pythonLiteral(body.input, 1)},
)
print([item.embedding for item in response.data])
`;
}

function pathOf(format, model) {
  return format.path.replace(/\{[^}]+\}/, encodeURIComponent(model.name));
}

/** Return a text as one word of a POSIX shell. */
function shellQuoted(text) {
  return `'${text.replaceAll("'", `'\\''`)}'`;
}

/** Return JSON on one line where it is short. */
function json(value) {
  const short = JSON.stringify(value);
  return short.length <= MAX_LINE ? short : JSON.stringify(value, null, 2);
}

/** Return a value of JSON as Python; its strings are Python's, too. */
function pythonLiteral(value, depth = 0) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const indent = "    ".repeat(depth + 1);
  const items = Array.isArray(value)
    ? value.map((item) => pythonLiteral(item, depth + 1))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${pythonLiteral(item, depth + 1)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  const short = `${open}${items.join(", ")}${close}`;
  if (!short.includes("\n") && short.length <= MAX_LINE - indent.length) return short;
  return `${open}\n${items.map((item) => `${indent}${item},\n`).join("")}${"    ".repeat(depth)}${close}`;
}
