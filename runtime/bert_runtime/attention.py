"""Attention probabilities of a text or a pair, token to token, by layer and head.

from bert_runtime import load_attention

model = load_attention("bundle/")           # of `bert-export export CHECKPOINT BUNDLE --attention`
attention = model("I lost my card")
attention.probabilities[0, 3]               # layer 0, head 3: float32 [tokens, tokens]
"""

from __future__ import annotations  # so that help() shows type aliases by name

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from bert_runtime.bundle.assets import check_assets
from bert_runtime.bundle.graph_checks import check_graph
from bert_runtime.bundle.manifest import AttentionGraph, Manifest
from bert_runtime.bundle.output_shape import check_output_shape
from bert_runtime.bundle.stable_reads import read_unreplaced
from bert_runtime.cpu.session import Session
from bert_runtime.errors import BundleError, InputError
from bert_runtime.inputs import SingleInput, as_text_input, named_input
from bert_runtime.machine import available_cores
from bert_runtime.numerics import Float32Array
from bert_runtime.tasks import TextInput
from bert_runtime.tokenization import TextTokenizer, pad

__all__ = ["DEFAULT_MAX_TOKENS", "Attention", "AttentionModel", "load_attention", "open_attention_session"]

DEFAULT_MAX_TOKENS = 128
"""Tokens that `load_attention` reads of an input by default, at most. The result takes layers × heads × tokens² × 4
bytes: for 12 layers of 12 heads 9 MB at 128 tokens, and 151 MB at 512."""

_DECIMALS = 6
"""Digits after the point in JSON: float32 has no more of a probability near 1."""


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """Attention probabilities of one input, token to token."""

    tokens: tuple[str, ...]
    """The S tokens as the vocabulary has them, special ones included: `[CLS]`, `##ing`, `Ġcard`."""

    words: tuple[str, ...]
    """The tokens as people read them: byte-level `Ġcard` and SentencePiece's `▁card` are `card`."""

    offsets: tuple[tuple[int, int], ...]
    """Start and end of each token in its text, in characters; (0, 0) for special tokens."""

    sequence_ids: tuple[int | None, ...]
    """The text that each token is of: 0, or 1 for the second of a pair; `None` for special tokens."""

    layers: tuple[int, ...]
    """Numbers of the layers, from 0."""

    heads: tuple[int, ...]
    """Numbers of the heads, from 0."""

    probabilities: Float32Array
    """Float32 [layers, heads, S, S]: how much each query (third axis) attends to each key (fourth axis). The
    probabilities of a query add up to 1."""

    truncated: bool = False
    """Whether the input has more tokens than were read."""

    def select(self, layer: int | None = None, head: int | None = None) -> Attention:
        """Return the attention of one layer, of one head, or of both; `None` stands for all.

        Raises:
            InputError: there is no such layer or head.
        """
        layers, heads = _selected("layer", self.layers, layer), _selected("head", self.heads, head)
        return replace(
            self,
            layers=tuple(self.layers[index] for index in layers),
            heads=tuple(self.heads[index] for index in heads),
            probabilities=self.probabilities[np.ix_(layers, heads)],
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON value: an object with these fields; `probabilities` are nested lists of six decimals.

        It also has `"truncated": true` where the input was.
        """
        return {
            "tokens": list(self.tokens),
            "words": list(self.words),
            "offsets": [list(span) for span in self.offsets],
            "sequence_ids": list(self.sequence_ids),
            "layers": list(self.layers),
            "heads": list(self.heads),
            "probabilities": self.probabilities.astype(np.float64).round(_DECIMALS).tolist(),
            **({"truncated": True} if self.truncated else {}),
        }


def _selected(kind: str, numbers: Sequence[int], number: int | None) -> list[int]:
    """Return the indices of a number, or of all."""
    if number is None:
        return [*range(len(numbers))]
    if number not in numbers:
        raise InputError(f"expected a {kind} of {numbers[0]} to {numbers[-1]}, found {number!r}")
    return [numbers.index(number)]


class AttentionModel:
    """A loaded attention graph. Made by `load_attention`.

    Safe to call from many threads. After a fork, load it again in the child.

    Args:
        graph: the graph's entry in the manifest.
        tokenizer: turns texts into token ids; it truncates, whatever the task.
        session: runs the graph.
    """

    def __init__(self, graph: AttentionGraph, tokenizer: TextTokenizer, session: Session) -> None:
        self.num_layers = len(graph.outputs)
        self.num_heads = graph.num_heads
        """Heads per layer."""
        self._tokenizer = tokenizer
        self._session = session
        self._outputs = [output.name for output in graph.outputs]

    @property
    def max_tokens(self) -> int:
        """Tokens that are read of an input, special tokens included."""
        return self._tokenizer.max_tokens

    def __repr__(self) -> str:
        return f"AttentionModel({self.num_layers} layers of {self.num_heads} heads, {self._session.device_name})"

    def __call__(self, inputs: SingleInput | None = None, **fields: str | None) -> Attention:
        """Return the attention of one input; what exceeds `max_tokens` is truncated, also for tasks with windows.

        Args:
            inputs: a text, a tuple of two texts, or a dict, as in `Model.__call__`.
            **fields: the input by name: `text` and optionally `text_pair`, or `question` and `context`.

        Raises:
            InputError: this is not one input, or it cannot be tokenized.
            ForkedSessionError: the model was loaded before the process forked.
        """
        value = as_text_input(named_input(inputs, fields) if fields else inputs)
        ((encoding,),) = self._tokenizer.encode([value])
        arrays = self._session.run_outputs(pad([encoding], self._tokenizer.pad_token_id), self._outputs)
        return Attention(
            tokens=tuple(encoding.tokens),
            words=tuple(map(self._word, encoding.ids, encoding.tokens)),
            offsets=self._offsets(value, encoding.sequence_ids, encoding.offsets),
            sequence_ids=tuple(encoding.sequence_ids),
            layers=tuple(range(self.num_layers)),
            heads=tuple(range(self.num_heads)),
            probabilities=np.concatenate(arrays),  # each has a batch of 1
            truncated=bool(encoding.overflowing),
        )

    def _word(self, token_id: int, token: str) -> str:
        """Return a token as people read it; a part of a character, which decodes to U+FFFD, stays as it is."""
        decoded = self._tokenizer.decode([token_id]).strip()
        return decoded if decoded and "\N{REPLACEMENT CHARACTER}" not in decoded else token

    def _offsets(
        self, value: TextInput, sequence_ids: Sequence[int | None], spans: Sequence[tuple[int, int]]
    ) -> tuple[tuple[int, int], ...]:
        """Return offsets in the texts as they were given, of which the tokenizer has read parts."""
        shifts = [0, 0]
        if self._tokenizer.truncation_side == "left":
            read = self._tokenizer.shortened(value)
            shifts = [len(whole or "") - len(part or "") for whole, part in zip(value, read, strict=True)]
        return tuple(
            (start, end) if sequence is None else (start + shifts[sequence], end + shifts[sequence])
            for sequence, (start, end) in zip(sequence_ids, spans, strict=True)
        )


def load_attention(
    bundle: str | Path,
    *,
    max_tokens: int | None = None,
    threads: int | None = None,
    verify: bool = True,
    allow_links: bool = False,
    mapped: bool = True,
) -> AttentionModel:
    """Load the attention graph of a bundle. It runs in FP32 on the CPU, whatever variants the bundle has.

    Args:
        bundle: the directory that `bert-export export --attention` wrote.
        max_tokens: tokens that are read of an input, at most the bundle's; by default 128 (`DEFAULT_MAX_TOKENS`), or
            the bundle's if that is less. Memory grows with its square.
        threads: threads per operator, by default the cores that affinity mask and cgroup grant.
        verify: see `load`; so are the following.
        allow_links: see `load`.
        mapped: see `load`.

    Raises:
        BundleError: the bundle has no attention graph, or as in `load`.
        NewerFormatError: the bundle was written by a later release.
        InputError: an argument is out of range.
        MissingExtraError: onnxruntime is not installed.
        DeploymentError: onnxruntime is too old.
    """
    path = Path(bundle)

    def read() -> AttentionModel:
        manifest = Manifest.read(path, verify=verify)
        graph = _attention_graph(path, manifest)
        limit = _checked_max_tokens(manifest, max_tokens)
        check_assets(path, (manifest.tokenizer, *graph.assets), verify_hash=verify, allow_links=allow_links)
        num_threads = available_cores() if threads is None else threads
        session = open_attention_session(path, manifest, graph, num_threads, mapped=mapped)
        tokenizer = TextTokenizer.from_file(path / manifest.tokenizer.file, limit, manifest.pad_token_id)
        return AttentionModel(graph, tokenizer, session)

    return read_unreplaced(path, read)


def _attention_graph(bundle: Path, manifest: Manifest) -> AttentionGraph:
    if manifest.attention is None:
        raise BundleError(
            f"{bundle}: expected a bundle with an attention graph, found none; export the checkpoint again with: "
            f"bert-export export CHECKPOINT {bundle} --attention --force"
        )
    return manifest.attention


def _checked_max_tokens(manifest: Manifest, max_tokens: int | None) -> int:
    if max_tokens is None:
        return min(manifest.max_tokens, DEFAULT_MAX_TOKENS)
    if not 1 <= max_tokens <= manifest.max_tokens:
        raise InputError(f"max_tokens must lie in 1 to {manifest.max_tokens}, found {max_tokens}")
    return max_tokens


def open_attention_session(
    bundle: Path, manifest: Manifest, graph: AttentionGraph, threads: int, *, mapped: bool = True
) -> Session:
    """Open a CPU session for a bundle's attention graph; `run` computes the model's own output.

    Raises:
        BundleError: the graph is damaged, or has other outputs than the manifest says.
    """
    check_graph(bundle, graph)
    path = bundle / graph.model.file
    # A copy of the weights is too much for a graph that runs beside the model, now and then.
    session = Session(path, manifest.output.name, threads, kernels=False, mapped=mapped, prepack=False)
    for output in (manifest.output, *graph.outputs):
        check_output_shape(path, session.output_shapes.get(output.name, ()), output)
    return session
