"""fill-mask: the tokens that fit in the places of a text that were masked."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from bert_runtime.errors import DataError, InputError
from bert_runtime.numerics import FloatArray, softmax
from bert_runtime.records import Record
from bert_runtime.tasks.base import Example, Outputs, Result, Task, TextInput, Vocabulary
from bert_runtime.tasks.checks import check_int, check_strings

__all__ = ["FillMask", "Filling", "Fillings"]


@dataclass(frozen=True, slots=True)
class Filling:
    """One token for one mask."""

    token: int
    """The token's id."""
    token_str: str
    score: float
    """Probability of the token among the whole vocabulary, in [0, 1]."""
    sequence: str
    """The text with this mask filled."""

    def to_dict(self) -> dict[str, Any]:
        """The JSON shape of one filling."""
        return {"score": self.score, "token": self.token, "token_str": self.token_str, "sequence": self.sequence}


@dataclass(frozen=True, slots=True, eq=False)
class Fillings(Result):
    """The best tokens for each mask of one text, best first."""

    masks: tuple[tuple[Filling, ...], ...]
    logits: FloatArray = field(repr=False)
    """The model's raw outputs at the masks [masks, vocabulary]."""

    def to_dict(self) -> Any:
        found = [[each.to_dict() for each in fillings] for fillings in self.masks]
        return found[0] if len(found) == 1 else found

    def summary(self) -> str:
        return " | ".join(
            ", ".join(f"{each.token_str.strip()} {each.score:.4f}" for each in fillings) for fillings in self.masks
        )


@dataclass(frozen=True, kw_only=True)
class FillMask(Task):
    """A score for every token of the vocabulary at every mask, each mask on its own."""

    mask_token: str
    """What marks a mask in a text."""
    mask_token_id: int
    top_k: int = 5
    """How many tokens to give for each mask."""
    candidates: tuple[str, ...] = ()
    """The words to choose among; by default the whole vocabulary. Stored under the key `targets`."""

    name: ClassVar[str] = "fill-mask"
    output: ClassVar[str] = "logits"

    def __post_init__(self) -> None:
        if not isinstance(self.mask_token_id, int) or not self.mask_token:
            raise ValueError(f"expected a mask token and its id, found {self.mask_token!r} and {self.mask_token_id!r}")
        check_int("top_k", self.top_k, least=1)
        check_strings("candidates", self.candidates)

    @property
    def options(self) -> tuple[str, ...]:
        """How many tokens are given, and which may be."""
        return ("top_k", "candidates")

    @property
    def metric(self) -> str:
        """Share of masks for which the right token is the best."""
        return "accuracy"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """The same best token at 90 % of the masks."""
        return "token_agreement", 0.9

    @property
    def reads_first_token_only(self) -> bool:
        """Masks may be anywhere."""
        return False

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as JSON values, with the candidates under the bundle format's key `targets`."""
        settings = super().to_dict()
        settings["targets"] = settings.pop("candidates")
        return settings

    @classmethod
    def from_dict(cls, settings: Mapping[str, Any]) -> Self:
        return super().from_dict({**settings, "candidates": settings.get("targets", ())})

    def split(self, array: FloatArray, encodings: Sequence[Encoding]) -> list[FloatArray]:
        """The graph gives a row per mask of the whole batch [masks, vocabulary]."""
        ends = np.cumsum([self._masks(each) for each in encodings])
        return np.split(array, ends[:-1])

    def graph_output(self, computed: Any, input_ids: Any) -> Any:
        """Of [B, S, vocabulary], the rows at masks [masks, vocabulary]."""
        return computed[input_ids == self.mask_token_id]

    def valid_probe_ids(self, input_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every sixty-fourth token is a mask: one in a sentence."""
        masked = input_ids.copy()
        masked[:, ::64] = self.mask_token_id
        return masked

    def _masks(self, encoding: Encoding) -> int:
        return encoding.ids.count(self.mask_token_id)

    def input_error(self, value: TextInput, encodings: Sequence[Encoding]) -> str | None:
        if self._masks(encodings[0]):
            return None
        cut = " in the part that the model reads" if encodings[0].overflowing else ""
        return f"expected at least one {self.mask_token}{cut}, found none"

    def decode(self, outputs: Outputs) -> Result:
        """Logits [masks, vocabulary] → the best tokens of each mask."""
        (logits,), ids = outputs.arrays, outputs.encodings[0].ids
        places = [i for i, token in enumerate(ids) if token == self.mask_token_id]
        allowed = self._allowed(outputs.vocabulary)
        masks = []
        for place, scores in zip(places, softmax(logits), strict=True):
            among = scores if allowed is None else scores[allowed]
            best = np.argsort(-among, kind="stable")[: self.top_k]
            tokens = (best if allowed is None else allowed[best]).tolist()
            masks.append(tuple(self._filling(t, float(scores[t]), ids, place, len(places), outputs) for t in tokens))
        return Fillings(tuple(masks), logits)

    def _allowed(self, vocabulary: Vocabulary) -> NDArray[np.int64] | None:
        """Ids of the target words; `None` for the whole vocabulary."""
        if not self.candidates:
            return None
        return np.unique([self.single_token_id(word, vocabulary) for word in self.candidates])

    def single_token_id(self, word: str, vocabulary: Vocabulary) -> int:
        """The id of a word that the vocabulary has; raises `InputError` for one of several tokens."""
        ids = vocabulary.token_ids(word)
        if len(ids) != 1:
            found = f"{len(ids)} tokens" if ids else "unknown to it"
            raise InputError(f"expected a word that is one token of the vocabulary, found {word!r}, which is {found}")
        return ids[0]

    def _filling(
        self, token: int, score: float, ids: Sequence[int], place: int, num_masks: int, outputs: Outputs
    ) -> Filling:
        decode = outputs.vocabulary.decode
        filled = [*ids[:place], token, *ids[place + 1 :]]
        # With other masks in the text, special tokens stay: these are some.
        return Filling(token, decode([token]), score, decode(filled, skip_special_tokens=num_masks == 1))

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        return (TextInput(record.text()),)

    def example(self, record: Record) -> Example:
        """A text with masks, and in `label` or `labels` the word for each."""
        text = record.text()
        words = record.labels() if "labels" in record.fields else [record.label()]
        if text.count(self.mask_token) != len(words):
            raise DataError(
                f"{record.where}: expected as many {self.mask_token} in the text as words, "
                f"found {text.count(self.mask_token)} and {len(words)}"
            )
        return Example((TextInput(text),), words)

    def target_error(self, example: Example, windows: Sequence[Encoding], vocabulary: Vocabulary) -> str | None:
        """Every word must be one token, and its mask among what the model reads."""
        try:
            for word in example.target:
                self.single_token_id(word, vocabulary)
        except InputError as error:
            return str(error)
        found, expected = self._masks(windows[0]), len(example.target)
        return (
            f"expected {expected} masks in the part that the model reads, found {found}" if found != expected else None
        )

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Accuracy at the first and among the first five, and perplexity, over all masks."""
        ranks, losses = [], []
        for each, example in zip(outputs, examples, strict=True):
            expected = [self.single_token_id(word, each.vocabulary) for word in example.target]
            # A text that is longer than the model reads may lose its last masks.
            for logits, token in zip(each.arrays[0].astype(np.float64), expected, strict=False):
                ranks.append(int((logits > logits[token]).sum()))
                highest = logits.max()
                losses.append(highest + np.log(np.exp(logits - highest).sum()) - logits[token])
        found = np.array(ranks)
        return {
            "accuracy": float((found == 0).mean()),
            "top_5_accuracy": float((found < 5).mean()),
            "perplexity": float(np.exp(np.mean(losses))),
        }

    def agreement(self, outputs: Sequence[Outputs], reference: Sequence[Outputs]) -> dict[str, float]:
        found, expected = (np.concatenate([each.arrays[0] for each in part]) for part in (outputs, reference))
        return {
            "token_agreement": float((found.argmax(axis=-1) == expected.argmax(axis=-1)).mean()),
            "mean_abs_logit_drift": float(np.abs(found - expected).mean()),
        }

    def sample_inputs(self, texts: Sequence[str]) -> list[TextInput]:
        """Each text with a word near its beginning masked, which no truncation loses."""
        inputs = []
        for text in texts:
            words = text.split() or [text]
            words[min(len(words) // 2, 4)] = self.mask_token
            inputs.append(TextInput(" ".join(words)))
        return inputs
