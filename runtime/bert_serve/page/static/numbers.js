// Numbers as people read them.

/** Return a probability as percent: 97.3 %; what would round to 100 or 0 is told from it. */
export function percent(share) {
  if (share > 0.9995 && share < 1) return "> 99.9 %";
  if (share > 0 && share < 0.0005) return "< 0.1 %";
  return `${(100 * share).toFixed(1)} %`;
}

/** Return milliseconds with about three digits. */
export function milliseconds(value) {
  return `${value.toFixed(value < 10 ? 2 : value < 100 ? 1 : 0)} ms`;
}

/** Return a count with its noun: "1 token", "2 tokens". */
export function count(number, noun) {
  return `${number.toLocaleString("en")} ${noun}${number === 1 ? "" : "s"}`;
}
