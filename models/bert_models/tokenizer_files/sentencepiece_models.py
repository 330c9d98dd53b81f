"""Tokenizers from a SentencePiece model: ALBERT, XLM-RoBERTa, CamemBERT.

The model is read once and becomes a `tokenizers` pipeline of the same pieces and scores: nothing of SentencePiece is
needed to run it. What SentencePiece would do to a text is what the models were pretrained on, so it decides where
`transformers` differs.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from bert_models.errors import CheckpointError
from bert_models.tokenizer_files.settings import TokenizerSettings
from bert_models.tokenizer_files.special_tokens import ALBERT_SPECIAL_TOKENS, ROBERTA_SPECIAL_TOKENS
from bert_runtime.errors import DeploymentError, MissingExtraError

__all__ = ["albert_steps", "build_albert", "build_camembert", "build_xlm_roberta", "model_message"]

_Pieces = list[tuple[str, float]]
"""Pieces in the order of their ids, with their log probabilities."""

_NEVER = -100.0
"""A score so low that a piece is not used where another will do."""


def build_albert(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """ALBERT's tokenizer: `[CLS] A [SEP]`, or `[CLS] A [SEP] B [SEP]` with segment 1 from B on."""
    source = _read_model(folder / "spiece.model")
    # ALBERT's own code splits a comma from the digits before it, though the vocabulary has pieces such as "▁2014,".
    pieces = [(p.piece, p.score + _NEVER if re.search(r"\d,$", p.piece) else p.score) for p in source.pieces]
    tokenizer, sep, cls = _assemble(
        source, pieces, settings, settings.roles(ALBERT_SPECIAL_TOKENS), albert_steps(settings)
    )
    tokenizer.post_processor = processors.BertProcessing(sep, cls)
    return tokenizer


def albert_steps(settings: TokenizerSettings) -> list[normalizers.Normalizer]:
    """What ALBERT does to a text before its model sees it."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not settings.flag("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if settings.flag("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    return steps


def build_xlm_roberta(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """XLM-RoBERTa's tokenizer, with the ids of fairseq's dictionary: its four special tokens first, the mask last."""
    roles = settings.roles(ROBERTA_SPECIAL_TOKENS)
    first = [(roles[role].content, 0.0) for role in ("bos_token", "pad_token", "eos_token", "unk_token")]
    return _fairseq(folder, settings, first, skipped=3)


def build_camembert(folder: Path, settings: TokenizerSettings) -> Tokenizer:
    """CamemBERT's tokenizer: the model's own `<s>` and `</s>`, after the five entries that fairseq put before them."""
    roles = settings.roles(ROBERTA_SPECIAL_TOKENS)
    first = [
        ("<s>NOTUSED", 0.0),
        (roles["pad_token"].content, 0.0),
        ("</s>NOTUSED", 0.0),
        (roles["unk_token"].content, 0.0),
        ("<unk>NOTUSED", _NEVER),
    ]
    return _fairseq(folder, settings, first, skipped=1)


def _fairseq(folder: Path, settings: TokenizerSettings, first: _Pieces, skipped: int) -> Tokenizer:
    """`<s> A </s>`, or `<s> A </s></s> B </s>` with all segments 0, over a dictionary that fairseq with_ids.

    The dictionary is `first`, then the model's pieces without the `skipped` first of them, then the mask.
    """
    path = folder / "sentencepiece.bpe.model"
    source = _read_model(path)
    if (start := [p.piece for p in source.pieces[:3]]) != ["<unk>", "<s>", "</s>"]:
        raise CheckpointError(
            f"{path}: expected <unk>, <s>, </s> as its first pieces, found {', '.join(start)}; "
            "save the tokenizer as tokenizer.json"
        )
    roles = settings.roles(ROBERTA_SPECIAL_TOKENS)
    pieces = [*first, *((p.piece, p.score) for p in source.pieces[skipped:]), (roles["mask_token"].content, 0.0)]
    tokenizer, sep, cls = _assemble(source, pieces, settings, roles, [])
    tokenizer.post_processor = processors.RobertaProcessing(sep, cls, trim_offsets=False)
    return tokenizer


def model_message(purpose: str) -> Any:
    """An empty protocol buffer for a model; raises `DeploymentError` where something is missing for `purpose`."""
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ImportError as error:
        raise MissingExtraError(error.name or "sentencepiece", "export", purpose) from None
    except Exception as error:  # protobuf's own, where it is older than the code generated for it
        raise DeploymentError(f"{purpose} needs a newer protobuf: pip install -U protobuf ({error})") from None
    return sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined] # generated at import


def _read_model(path: Path) -> Any:
    """The model's protocol buffer; raises `CheckpointError` where the file is none."""
    model = model_message(f"reading {path}")
    try:
        model.ParseFromString(path.read_bytes())
    except Exception:  # protobuf's DecodeError
        model.Clear()
    if not model.pieces:
        raise CheckpointError(
            f"{path}: expected a SentencePiece model, found something else or nothing; copy it again (a git clone "
            "without LFS leaves a short text in its place)"
        )
    if model.trainer_spec.model_type not in (model.trainer_spec.UNIGRAM, model.trainer_spec.BPE):
        raise CheckpointError(f"{path}: expected a unigram or BPE model, found one of words or characters")
    return model


def _assemble(
    source: Any,
    pieces: _Pieces,
    settings: TokenizerSettings,
    roles: Mapping[str, AddedToken],
    steps: list[normalizers.Normalizer],
) -> tuple[Tokenizer, tuple[str, int], tuple[str, int]]:
    """The pipeline that all share, with its separator and its first token: normalize by `steps` and the model's own
    table, split at spaces, mark the start of each word with ▁, find the best pieces."""
    tokenizer = Tokenizer(_model(source, pieces, roles["unk_token"].content))
    if source.normalizer_spec.precompiled_charsmap:
        steps = [*steps, normalizers.Precompiled(source.normalizer_spec.precompiled_charsmap)]
    if steps:
        tokenizer.normalizer = normalizers.Sequence(steps)
    scheme = "always" if settings.flag("add_prefix_space", True) else "never"
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme=scheme)]
    )
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme=scheme)
    settings.add_tokens(tokenizer, roles)
    sep, cls, _ = settings.with_ids(tokenizer, roles["sep_token"], roles["cls_token"], roles["unk_token"])
    return tokenizer, sep, cls


def _model(source: Any, pieces: _Pieces, unknown: str) -> Any:
    """The pieces as `tokenizers` has them: with their probabilities, or with merges in the order of their scores."""
    ids = {piece: number for number, (piece, _) in enumerate(pieces)}
    fallback = source.trainer_spec.byte_fallback
    if source.trainer_spec.model_type == source.trainer_spec.UNIGRAM:
        return models.Unigram(pieces, unk_id=ids.get(unknown), byte_fallback=fallback)
    merges = [
        (piece[:cut], piece[cut:])
        for piece, _ in sorted(pieces, key=lambda each: -each[1])
        for cut in range(1, len(piece))
        if piece[:cut] in ids and piece[cut:] in ids
    ]
    return models.BPE(ids, merges, unk_token=unknown, fuse_unk=True, byte_fallback=fallback)
