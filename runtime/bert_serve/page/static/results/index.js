// Results by kind. Each module has `render(result, input, inputs)`, which returns an element, and `compare(result, other)`,
// which returns a sentence.

import * as answers from "./answers.js";
import * as entities from "./entities.js";
import * as fillings from "./fillings.js";
import * as labels from "./labels.js";
import * as numbers from "./numbers.js";
import * as other from "./other.js";
import * as replaced from "./replaced.js";
import * as similarity from "./similarity.js";

export const RESULTS = { answers, entities, fillings, labels, numbers, other, replaced, similarity };
