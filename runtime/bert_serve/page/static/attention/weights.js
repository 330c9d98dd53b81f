// The probabilities of an answer: [layers, heads, tokens, tokens] in two bytes each, little-endian.

/** Attention of all layers and heads for one input. */
export class Weights {
  /** @param {{tokens: Object[], num_layers: number, num_heads: number, scale: number, probabilities: string}} answer */
  constructor(answer) {
    this.tokens = answer.tokens;
    this.numLayers = answer.num_layers;
    this.numHeads = answer.num_heads;
    this.scale = answer.scale;
    const bytes = Uint8Array.from(atob(answer.probabilities), (character) => character.charCodeAt(0));
    this.view = new DataView(bytes.buffer);
  }

  /** Return how much a query token attends to a key token, in [0, 1]. */
  at(layer, head, query, key) {
    const size = this.tokens.length;
    return this.view.getUint16(2 * (((layer * this.numHeads + head) * size + query) * size + key), true) / this.scale;
  }
}
