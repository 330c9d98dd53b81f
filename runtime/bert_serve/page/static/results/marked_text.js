// A text with marked spans.

import { element } from "../dom.js";
import { CharacterText } from "../unicode.js";

/**
 * Return the text with its spans as marks.
 *
 * @param {string} text
 * @param {{start: number, end: number}[]} spans in characters, in the order of the text, not overlapping
 * @param {function(Object, string): HTMLElement} makeMark makes the mark of a span and its text
 */
export function markedText(text, spans, makeMark) {
  const characters = new CharacterText(text);
  const parts = [];
  let end = 0;
  for (const span of spans) {
    if (span.start < end) continue; // part of a character that is marked already
    parts.push(characters.slice(end, span.start), makeMark(span, characters.slice(span.start, span.end)));
    end = span.end;
  }
  parts.push(characters.slice(end));
  return element("p", { class: "marked", dir: "auto" }, ...parts);
}
