"""Explanations of the measurements and fusions of a report, a line each."""

__all__ = ["FUSIONS", "heading", "measure_note", "readable"]

FUSIONS = {
    "attention": "scores, softmax and values as one operator in each layer",
    "multi_head_attention": "scores, softmax and values as one operator in each layer",
    "first_row": "the last layer computes only the first token, which is all that the head reads",
    "masked_rows": "the vocabulary's scores are computed at masks only",
    "qkv_projection": "one matrix multiplication for queries, keys and values",
    "kv_projection": "one matrix multiplication for keys and values",
    "layer_normalization": "one operator each",
    "gelu": "one operator each",
    "padding_branch": "attention skips the mask where a batch has no padding",
    "packed_rows": "no work on padding: the tokens of a batch are packed",
    "skip_layer_normalization": "residual sum and layer normalization as one operator",
    "bias_gelu": "bias and GELU as one operator",
    "unmasked_attention": "attention without a mask, for batches without padding",
    "packed_attention": "attention on the real tokens only",
    "attention_spelled_out": "attention as single operators, which TensorRT fuses by itself",
    "int8_matmul": "matrix multiplications in INT8",
}
"""Descriptions of fusions by the manifest's key."""

_MEASURES = {
    "label_agreement": "share of equal labels, of several labels of texts with all of them equal",
    "token_agreement": "share of masks with the same best token",
    "answer_agreement": "share of questions with the same answer",
    "mean_cosine": "mean cosine similarity with FP32's embeddings",
    "p1_cosine": "1st percentile of that similarity: 99 % of the embeddings are closer",
    "min_cosine": "the least similar embedding",
    "pearson": "linear correlation",
    "spearman": "rank correlation",
    "mean_abs_logit_drift": "mean distance of a logit from FP32's",
    "max_abs_logit_drift": "largest distance of a logit from FP32's",
    "max_abs_difference": "largest distance of any output from FP32's",
    "accuracy": "share of correct predictions",
    "macro_f1": "mean of the labels' F1",
    "micro_f1": "F1 over all labels of all texts",
    "f1": "harmonic mean of precision and recall",
    "question-answering f1": "mean F1 of an answer's words with the closest right answer",
    "precision": "share of the predicted entities that are right",
    "recall": "share of the entities that are found",
    "exact_match": "share of predictions that are right as a whole",
    "answerability_accuracy": "share of questions that are rightly answered or left unanswered",
    "ndcg_at_10": "normalized discounted cumulative gain of each query's ten best documents",
    "mrr_at_10": "mean of 1 / rank of the first relevant document, 0 below rank 10",
    "recall_at_1": "share of the right texts of a query that are found first",
    "recall_at_10": "share of the right texts of a query that are among its ten best",
    "top_32_overlap": "share of a text's 32 tokens of largest weight that are also FP32's",
    "top_5_accuracy": "share of masks whose right word is among the first five",
    "perplexity": "exponential of the mean loss; lower is better",
    "mean_squared_error": "lower is better",
    "best_threshold": "threshold that would be best on this file",
    "best_f1": "F1 with that threshold",
    "best_micro_f1": "micro F1 with that threshold",
    "texts": "inputs that drift was measured on",
    "examples": "labelled examples that the metrics were measured on",
}
"""Descriptions of drift and metrics by key, or by task and key where tasks differ."""


def measure_note(task: str, key: str) -> str:
    """Return what a measure of a task says; empty where this release does not know it."""
    return _MEASURES.get(f"{task} {key}", _MEASURES.get(key, ""))


_SPELLINGS = {
    name.lower(): name for name in ("BERT", "CUDA", "F1", "FP16", "FP32", "GELU", "INT8", "KV", "QKV", "TensorRT")
}


def readable(key: str) -> str:
    """Return a key, or a variant's title, as words: `int8_matmul` as `INT8 matmul`."""
    return " ".join(_SPELLINGS.get(word, word) for word in key.replace("_", " ").split(" "))


def heading(key: str) -> str:
    """Return a key as words that start with a capital letter."""
    words = readable(key)
    return words[:1].upper() + words[1:]
