// What two precisions' results have in common.

/** Return the largest absolute difference of scores with the same keys. */
export function largestDifference(first, second) {
  const others = new Map(second);
  return Math.max(0, ...first.filter(([key]) => others.has(key)).map(([key, score]) => Math.abs(score - others.get(key))));
}

/**
 * Return the comparison as a sentence.
 *
 * @param {boolean} same whether both decide the same
 * @param {string} noun what they decide: "label", "entities"
 * @param {number} largest largest difference of scores
 */
export function agreement(same, noun, largest) {
  const verdict = same ? `Same ${noun}` : `Different ${noun}`;
  return `${verdict}; scores differ by at most ${largest < 0.00005 && largest > 0 ? "0.0001" : largest.toFixed(4)}.`;
}
