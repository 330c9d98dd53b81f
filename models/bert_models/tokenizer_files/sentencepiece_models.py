"""Convert SentencePiece models (Kudo & Richardson, arXiv:1808.06226) to `tokenizers`: ALBERT, XLM-RoBERTa, CamemBERT,
DeBERTa.

The result has the same pieces and scores, and does not need SentencePiece to run. Where `transformers` differs from
SentencePiece, this follows SentencePiece, because the models were pre-trained with it.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bert_models.errors import CheckpointError
from bert_models.tokenizer_files.settings import TokenizerSettings
from bert_models.tokenizer_files.special_tokens import (
    ALBERT_SPECIAL_TOKENS,
    DEBERTA_SPECIAL_TOKENS,
    ROBERTA_SPECIAL_TOKENS,
)
from bert_runtime.errors import DeploymentError, MissingExtraError

__all__ = [
    "albert_normalizers",
    "build_albert",
    "build_camembert",
    "build_deberta",
    "build_xlm_roberta",
    "model_message",
]

_Pieces = list[tuple[str, float]]
"""Pieces and their log probabilities, ordered by id."""

_SCORE_PENALTY = -100.0
"""Low enough that a piece is used only if there is no other segmentation."""


def build_albert(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """Build ALBERT's tokenizer: `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]` with segment 1 from B on.

    Args:
        folder: holds `spiece.model`.
        settings: the checkpoint's tokenizer settings.

    Raises:
        CheckpointError: the file is damaged or does not match the settings.
        MissingExtraError: sentencepiece is not installed.
    """
    source = _read_model(folder / "spiece.model")
    # ALBERT's code splits a comma from the digits before it, although the vocabulary has pieces such as "▁2014,".
    pieces = [(p.piece, p.score + _SCORE_PENALTY if re.search(r"\d,$", p.piece) else p.score) for p in source.pieces]
    special = settings.special_tokens(ALBERT_SPECIAL_TOKENS)
    tokenizer, sep, cls = _assemble(source, pieces, settings, special, albert_normalizers(settings))
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer


def albert_normalizers(settings: TokenizerSettings) -> list[normalizers.Normalizer]:
    """Return the normalizers that ALBERT applies before SentencePiece."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.flag("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    return steps


def build_xlm_roberta(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """Build XLM-RoBERTa's tokenizer, like `build_albert`, with fairseq's ids: special tokens first, the mask last."""
    special = settings.special_tokens(ROBERTA_SPECIAL_TOKENS)
    first = [(special[role].content, 0.0) for role in ("bos_token", "pad_token", "eos_token", "unk_token")]
    return _fairseq(folder, settings, first, skipped=3)


def build_camembert(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """Build CamemBERT's tokenizer, like `build_albert`: five entries of fairseq, then the pieces from `<s>` on."""
    special = settings.special_tokens(ROBERTA_SPECIAL_TOKENS)
    first = [
        ("<s>NOTUSED", 0.0),
        (special["pad_token"].content, 0.0),
        ("</s>NOTUSED", 0.0),
        (special["unk_token"].content, 0.0),
        ("<unk>NOTUSED", _SCORE_PENALTY),
    ]
    return _fairseq(folder, settings, first, skipped=1)


def build_deberta(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """Build DeBERTa-v2's tokenizer: `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]` with segment 1 from B on.

    Spaces are pieces' own, so that several in a row count as one. The mask follows the model's pieces. This equals the
    `tokenizer.json` that transformers 4 wrote; transformers 5 leaves out the model's character map (NFKC).
    """
    source = _read_model(folder / "spm.model")
    special = settings.special_tokens(DEBERTA_SPECIAL_TOKENS)
    pieces = [(p.piece, p.score) for p in source.pieces]
    tokenizer = Tokenizer(_model(source, pieces, special["unk_token"].content))
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()] if settings.flag("do_lower_case", False) else []
    steps.append(normalizers.Strip())
    if source.normalizer_spec.precompiled_charsmap:
        steps.append(normalizers.Precompiled(source.normalizer_spec.precompiled_charsmap))
    tokenizer.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
    scheme = "always" if settings.flag("add_prefix_space", True) else "never"
    splits: list[Any] = [pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]
    if settings.flag("split_by_punct", False):
        splits.insert(0, pre_tokenizers.Punctuation(behavior="isolated"))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(splits)
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    if special["mask_token"].content not in settings.added_contents:  # those have an id of their own
        tokenizer.add_special_tokens([special["mask_token"]])
    settings.add_tokens(tokenizer, special)
    sep, cls, _ = settings.with_ids(tokenizer, special["sep_token"], special["cls_token"], special["unk_token"])
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer


def _fairseq(folder: Path, settings: TokenizerSettings, first: _Pieces, skipped: int) -> Tokenizer:
    """Build a tokenizer of fairseq: `<s> A </s>`, or `<s> A </s></s> B </s>` with segment 0 throughout.

    Its vocabulary is `first`, then the model's pieces without the first `skipped`, then the mask.
    """
    path = folder / "sentencepiece.bpe.model"
    source = _read_model(path)
    if (start := [p.piece for p in source.pieces[:3]]) != ["<unk>", "<s>", "</s>"]:
        raise CheckpointError(
            f"{path}: expected <unk>, <s>, </s> as the first pieces, found {', '.join(start)}; "
            "save the tokenizer as tokenizer.json"
        )
    special = settings.special_tokens(ROBERTA_SPECIAL_TOKENS)
    pieces = [*first, *((p.piece, p.score) for p in source.pieces[skipped:]), (special["mask_token"].content, 0.0)]
    tokenizer, sep, cls = _assemble(source, pieces, settings, special, [])
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=False)
    return tokenizer


def model_message(purpose: str) -> Any:
    """Return an empty SentencePiece `ModelProto`.

    Args:
        purpose: why it is needed, for error messages.

    Raises:
        MissingExtraError: sentencepiece or protobuf is not installed.
        DeploymentError: protobuf is too old.
    """
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise MissingExtraError(error.name or "sentencepiece", "export", purpose) from None
    except Exception as error:  # protobuf raises its own error if it is older than the generated code
        raise DeploymentError(f"{purpose} needs a newer protobuf: pip install -U protobuf ({error})") from None
    return sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined] # generated at import


def _read_model(path: Path) -> Any:
    """Read a SentencePiece `ModelProto`; raise `CheckpointError` if the file holds none."""
    model = model_message(f"reading {path}")
    try:
        model.ParseFromString(path.read_bytes())
    except Exception:  # protobuf's DecodeError
        model.Clear()
    if not model.pieces:
        raise CheckpointError(
            f"{path}: expected a SentencePiece model, found something else or nothing; copy it again (a git clone "
            "without LFS has a short text file instead)"
        )
    if model.trainer_spec.model_type not in (model.trainer_spec.UNIGRAM, model.trainer_spec.BPE):
        raise CheckpointError(f"{path}: expected a unigram or BPE model, found one of words or characters")
    return model


def _assemble(
    source: Any,
    pieces: _Pieces,
    settings: TokenizerSettings,
    special: Mapping[str, AddedToken],
    steps: list[normalizers.Normalizer],
) -> tuple[Tokenizer, tuple[str, int], tuple[str, int]]:
    """Return the tokenizer without post-processor, and its separator and first token with their ids.

    It normalizes by `steps` and the model's character map, splits at spaces, marks word starts with ▁, and segments
    words into pieces.
    """
    tokenizer = Tokenizer(_model(source, pieces, special["unk_token"].content))
    if source.normalizer_spec.precompiled_charsmap:
        steps = [*steps, normalizers.Precompiled(source.normalizer_spec.precompiled_charsmap)]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if settings.flag("add_prefix_space", True) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    settings.add_tokens(tokenizer, special)
    sep, cls, _ = settings.with_ids(tokenizer, special["sep_token"], special["cls_token"], special["unk_token"])
    return tokenizer, sep, cls


def _model(source: Any, pieces: _Pieces, unknown: str) -> Any:
    """Convert the pieces to a model of `tokenizers`: Unigram with scores, or BPE with merges ordered by score."""
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    fallback = source.trainer_spec.byte_fallback
    if source.trainer_spec.model_type == source.trainer_spec.UNIGRAM:
        return models.Unigram(pieces, unk_id=ids.get(unknown), byte_fallback=fallback)
    merges = [
        (piece[:cut], piece[cut:])
        for piece, _ in sorted(pieces, key=lambda item: -item[1])
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    return models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)
