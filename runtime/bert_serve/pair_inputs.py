"""How servers of tensors name the two texts of tasks that need both."""

__all__ = ["PAIR_INPUTS"]

PAIR_INPUTS = {
    "question-answering": ("question", "context"),
    "next-sentence-prediction": ("text", "text_pair"),
    "rerank": ("text", "text_pair"),
}
"""Input names by the task; Triton's are in capitals. All other tasks read `text`, and a classifier also `text_pair`."""
