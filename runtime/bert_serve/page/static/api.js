// Requests to the server, with the key where one was given. Addresses are relative, so that a proxy may add a prefix.

/** A refusal of the server, or no answer at all. */
export class ServerError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

let apiKey = "";

/** Set the key that requests carry from now on. */
export function setKey(key) {
  apiKey = key.trim();
}

/** Return the served models, and what else the page must know of the server. */
export function fetchModels() {
  return request("page/models");
}

/** Return the page's answer of one precision of a model. */
export function fetchPrediction(model, precision, inputs) {
  return request("page/predict", { model, precision, inputs });
}

/** Return the attention of all layers and heads for one input. */
export function fetchAttention(model, input) {
  return request("page/attention", { model, input });
}

async function request(path, body) {
  const headers = apiKey ? { Authorization: `Bearer ${apiKey}` } : {};
  const options = { headers };
  if (body !== undefined) {
    Object.assign(options, { method: "POST", body: JSON.stringify(body) });
    headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, options);
  } catch {
    throw new ServerError("The server does not answer.", 0);
  }
  const answer = await response.json().catch(() => null);
  if (response.ok && answer !== null) return answer;
  throw new ServerError(answer?.error?.message ?? `The server answered ${response.status} ${response.statusText}`, response.status);
}
