// Texts in characters as Python counts them. JavaScript counts UTF-16 units: an emoji is two of those.

const LETTER = /\p{L}/u;
const RIGHT_TO_LEFT = /[\p{Script=Hebrew}\p{Script=Arabic}\p{Script=Syriac}\p{Script=Thaana}\p{Script=Nko}\p{Script=Adlam}]/u;

/** A text that is cut at character offsets of the server. */
export class CharacterText {
  /** @param {string} text */
  constructor(text) {
    this.characters = Array.from(text);
  }

  get length() {
    return this.characters.length;
  }

  /** Return the part between two characters. */
  slice(start, end) {
    return this.characters.slice(start, end).join("");
  }
}

/** Return "rtl" or "ltr" by the first letter of a text. */
export function direction(text) {
  const letter = text.match(LETTER);
  return letter !== null && RIGHT_TO_LEFT.test(letter[0]) ? "rtl" : "ltr";
}
