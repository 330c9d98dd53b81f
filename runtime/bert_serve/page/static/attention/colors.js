// The colors of weights: one hue from the page's ground to full strength, so that they also differ in lightness.

/** Return a function from a weight in [0, 1] to a CSS color; small weights are raised to be seen. */
export function colorScale() {
  const styles = getComputedStyle(document.documentElement);
  const [low, high] = ["--map-low", "--map-high"].map((name) => channels(styles.getPropertyValue(name)));
  return (weight) => {
    const share = Math.sqrt(weight);
    return `rgb(${low.map((value, index) => Math.round(value + share * (high[index] - value))).join(" ")})`;
  };
}

function channels(color) {
  const digits = color.trim().slice(1);
  return [0, 2, 4].map((start) => parseInt(digits.slice(start, start + 2), 16));
}
