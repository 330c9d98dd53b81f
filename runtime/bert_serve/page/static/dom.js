// Elements of the page. Text is only ever set as text, never parsed as HTML: it comes from users and from models.

/**
 * Return a new element.
 *
 * @param {string} tag
 * @param {Object<string, any>} attributes `class`, `for`, `aria-…` and others by name, `on…` for listeners, and
 *     `style` as an object of CSS properties; those that are null or false are left out.
 * @param {...(Node|string|null)} children strings become text
 */
export function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [property, text] of Object.entries(value)) made.style.setProperty(property, text);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

/** Return the element of the page with this id. */
export function byId(id) {
  return document.getElementById(id);
}
