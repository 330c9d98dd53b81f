// The request as curl and Python, to copy.

import { element } from "./dom.js";
import { curl, formatsFor, python } from "./snippets.js";

let chosenName = null; // stays chosen from one request to the next

/**
 * Return the view of a request.
 *
 * @param {{task: string, name: string}} model
 * @param {{text: string, text_pair: ?string}[]} inputs
 * @param {{paths: string[], needs_key: boolean}} server
 */
export function requestView(model, inputs, server) {
  const formats = formatsFor(model, inputs, server.paths);
  if (!formats.length) return element("p", { class: "hint" }, `This server has no other route for ${model.task} than this page's.`);
  const address = new URL(".", document.baseURI).href.replace(/\/$/, "");
  const request = { address, model, inputs, needsKey: server.needs_key };
  const shown = element("div", { class: "snippets" });
  const select = element("select", { id: "format" }, ...formats.map(({ name, path }, index) =>
    element("option", { value: String(index) }, `${name}: ${path.replace(":path", "")}`)));
  const show = () => {
    const format = formats[Number(select.value)];
    shown.replaceChildren(snippet("curl", curl(format, request)), snippet("Python", python(format, request)));
  };
  select.value = String(Math.max(0, formats.findIndex(({ name }) => name === chosenName)));
  select.addEventListener("change", () => {
    chosenName = formats[Number(select.value)].name;
    show();
  });
  show();
  return element("div", {}, element("p", { class: "choices" }, element("label", { for: "format" }, "Format"), select), shown);
}

function snippet(language, text) {
  const code = element("pre", { class: "code", tabindex: "0", "aria-label": `Request in ${language}`, dir: "ltr" }, element("code", {}, text));
  const button = element("button", { type: "button", class: "quiet", "aria-label": `Copy ${language}` }, "Copy");
  button.addEventListener("click", async () => {
    button.textContent = (await copy(text, code)) ? "Copied" : "Selected: press Ctrl + C";
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  return element("div", { class: "snippet" }, element("div", { class: "title" }, element("h2", {}, language), button), code);
}

/** Copy a text; select it where the browser does not allow that, such as without HTTPS. */
async function copy(text, shown) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    getSelection().selectAllChildren(shown);
    return false;
  }
}
