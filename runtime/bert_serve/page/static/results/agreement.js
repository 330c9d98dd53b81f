// What two precisions' results have in common.

/**
 * Return the largest absolute difference of scores with the same keys.
 *
 * @param {?number} missing the score of a key that only one of them has; by default such keys do not count
 */
export function largestDifference(first, second, missing = null) {
  const [one, other] = [new Map(first), new Map(second)];
  const keys = [...new Set([...one.keys(), ...other.keys()])].filter((key) => missing !== null || (one.has(key) && other.has(key)));
  return Math.max(0, ...keys.map((key) => Math.abs((one.get(key) ?? missing) - (other.get(key) ?? missing))));
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
