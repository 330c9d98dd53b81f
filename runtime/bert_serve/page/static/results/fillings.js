// Tokens for each mask, and the text with those that are chosen: fill-mask.

import { element } from "../dom.js";
import { agreement, largestDifference } from "./agreement.js";
import { bars } from "./bars.js";

export function render({ masks, mask_token }, { text }) {
  const chosen = masks.map(() => 0);
  const filled = element("p", { class: "marked", dir: "auto" });
  const show = () => {
    const parts = text.split(mask_token);
    filled.replaceChildren(...parts.flatMap((part, index) => {
      if (index === 0) return [part];
      const filling = masks[index - 1]?.[chosen[index - 1]]; // truncation drops masks at the end
      return [filling ? element("mark", { class: "answer" }, filling.label.trim()) : mask_token, part];
    }));
  };
  show();
  const lists = masks.map((fillings, mask) => {
    const items = fillings.map((filling, index) => ({ ...filling, chosen: index === 0 }));
    const list = bars(items, (index) => {
      chosen[mask] = index;
      show();
    });
    return masks.length === 1 ? list : element("section", {}, element("h3", {}, `Mask ${mask + 1}`), list);
  });
  return element("div", {}, filled, ...lists);
}

export function compare(first, second) {
  const same = first.masks.every((fillings, mask) => fillings[0].label === second.masks[mask][0].label);
  const [scores, others] = [first, second].map(({ masks }) =>
    masks.flatMap((fillings, mask) => fillings.map(({ label, score }) => [`${mask} ${label}`, score])));
  return agreement(same, first.masks.length === 1 ? "best token" : "best tokens", largestDifference(scores, others));
}
