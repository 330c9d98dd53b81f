// Inputs to start from, by task. The fields are those of inputs.js.

const BANK = "The Bank of England was founded in 1694 by William Paterson. It stands in Threadneedle Street in London.";

export const EXAMPLES = {
  "text-classification": [
    { text: "I lost my card on the train this morning. What can I do?" },
    { text: "What a wonderful film, I would watch it again tomorrow!" },
  ],
  "token-classification": [
    { text: "Ada Lovelace met Charles Babbage in London, long before there was IBM." },
    { text: "Refund the tickets to New York and Paris, please." },
  ],
  "question-answering": [
    { question: "Who founded the Bank of England?", context: BANK },
    { question: "Where does it stand?", context: BANK },
  ],
  "fill-mask": [{ text: "The capital of France is @mask@." }, { text: "She poured a cup of @mask@ and opened the @mask@." }],
  "sentence-embedding": [
    { text: "A man is playing a guitar.\nSomeone plays an instrument.\nThe stock market fell today.\nShares lost value this morning.\nHow do I bake bread?" },
  ],
  "feature-extraction": [
    { text: "The bank by the river is steep, the bank in the city is closed." },
    { text: "She plays the bass and catches a bass." },
  ],
  "replaced-token-detection": [{ text: "The quick brown fox ate over the lazy dog." }],
  "next-sentence-prediction": [
    { text: "The kettle began to whistle.", text_pair: "She took it off the stove and made tea." },
    { text: "The kettle began to whistle.", text_pair: "Parliament is elected every four years." },
  ],
  rerank: [
    { text: "Who founded the Bank of England?", text_pair: BANK },
    { text: "How do I bake bread?", text_pair: BANK },
  ],
};
