"""Classes with the signatures of sentence-transformers that run bundles, so that a program changes one import.

    from bert_runtime.sentence_transformers import CrossEncoder, SentenceTransformer

    model = SentenceTransformer("bundle/")
    model.encode(["I lost my card"], normalize_embeddings=True)

Arguments, prompts, shapes and values are those of sentence-transformers 6. What a bundle cannot do raises an
`InputError` that names it. Similarities are arrays of NumPy, where sentence-transformers returns tensors.
"""

from bert_runtime.sentence_transformers.cross_encoder import CrossEncoder
from bert_runtime.sentence_transformers.encoder import SentenceTransformer

__all__ = ["CrossEncoder", "SentenceTransformer"]
