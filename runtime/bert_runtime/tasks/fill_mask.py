"""fill-mask: predict the tokens that a text's mask tokens stand for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding

from bert_runtime.errors import DataError, InputError
from bert_runtime.numerics import FloatArray, best_columns, softmax
from bert_runtime.records import Record
from bert_runtime.tasks.base import Task
from bert_runtime.tasks.checks import check_int, check_strings
from bert_runtime.tasks.values import Example, Outputs, Result, TextInput
from bert_runtime.tasks.vocabulary import Vocabulary

__all__ = ["FillMask", "Filling", "Fillings"]


@dataclass(frozen=True, slots=True)
class Filling:
    """A predicted token for one mask.

    As JSON: `{"score": 0.93, "token": 3007, "token_str": "capital", "sequence": "paris is the capital of france."}`.
    """

    token: int
    """Token id."""
    token_str: str
    """The token as text."""
    score: float
    """Probability of the token, in [0, 1]: a softmax over the whole vocabulary, also with `candidates`."""
    sequence: str
    """The text with this mask filled and any other masks left as they are."""

    def to_dict(self) -> dict[str, Any]:
        """Return the filling as a JSON object, shaped as in the Hugging Face pipeline."""
        return {"score": self.score, "token": self.token, "token_str": self.token_str, "sequence": self.sequence}


@dataclass(frozen=True, slots=True, eq=False)
class Fillings(Result):
    """The most probable tokens for each mask of one text.

    As JSON: a list of fillings for a text with one mask; a list of such lists for a text with several.
    """

    masks: tuple[tuple[Filling, ...], ...]
    """For each mask, in the order of the text, its fillings, most probable first."""
    logits: FloatArray = field(repr=False)
    """Raw outputs at the masks: float32 [masks, vocabulary]."""

    def to_dict(self) -> Any:
        masks = [[filling.to_dict() for filling in fillings] for fillings in self.masks]
        return masks[0] if len(masks) == 1 else masks

    def summary(self) -> str:
        return " | ".join(
            ", ".join(f"{filling.token_str.strip()} {filling.score:.4f}" for filling in fillings)
            for fillings in self.masks
        )


@dataclass(frozen=True, kw_only=True)
class FillMask(Task):
    """Masked language modelling: a score for every token of the vocabulary at every mask, independently."""

    mask_token: str
    """The mask token as it is written in a text."""
    mask_token_id: int
    top_k: int = 5
    """Number of tokens to return for each mask."""
    candidates: tuple[str, ...] = ()
    """Words to choose from; by default the whole vocabulary. Stored under the key `targets`."""

    name: ClassVar[str] = "fill-mask"
    output: ClassVar[str] = "logits"

    def __post_init__(self) -> None:
        if not isinstance(self.mask_token_id, int) or not self.mask_token:
            raise ValueError(f"expected a mask token and its id, found {self.mask_token!r} and {self.mask_token_id!r}")
        check_int("top_k", self.top_k, minimum=1)
        check_strings("candidates", self.candidates)

    @property
    def options(self) -> tuple[str, ...]:
        """Number of tokens, and the words to choose from."""
        return ("top_k", "candidates")

    @property
    def metric(self) -> str:
        """Share of masks whose most probable token is the right one."""
        return "accuracy"

    @property
    def agreement_floor(self) -> tuple[str, float]:
        """Equal best tokens at 90 % of the masks."""
        return "token_agreement", 0.9

    @property
    def reads_first_token_only(self) -> bool:
        """Masks may be anywhere in a text."""
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
        """Split the logits of all masks of a batch, in order, by encoding: [masks, vocabulary] each."""
        ends = np.cumsum([self.num_vectors(encoding) for encoding in encodings])
        return np.split(array, ends[:-1])

    def graph_output(self, computed: Any, input_ids: Any) -> Any:
        """Select the logits at masks: [B, S, vocabulary] → [masks, vocabulary]."""
        return computed[input_ids == self.mask_token_id]

    def valid_probe_ids(self, input_ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Make every 64th token a mask, which is about one per sentence."""
        masked = input_ids.copy()
        masked[:, ::64] = self.mask_token_id
        return masked

    def num_vectors(self, encoding: Encoding) -> int:
        """Return the number of masks."""
        return encoding.ids.count(self.mask_token_id)

    def input_error(self, value: TextInput, encodings: Sequence[Encoding]) -> str | None:
        if self.num_vectors(encodings[0]):
            return None
        where = " within the model's maximum length" if encodings[0].overflowing else ""
        return f"expected at least one {self.mask_token}{where}, found none"

    def decode(self, outputs: Outputs) -> Result:
        """Select the most probable tokens of each mask from the logits [masks, vocabulary]."""
        (logits,), ids = outputs.arrays, outputs.encodings[0].ids
        mask_indices = [i for i, token in enumerate(ids) if token == self.mask_token_id]
        allowed = self._candidate_ids(outputs.vocabulary)
        masks = []
        for index, scores in zip(mask_indices, softmax(logits), strict=True):
            eligible = scores if allowed is None else scores[allowed]
            best = best_columns(eligible[None], min(self.top_k, len(eligible)))[0]
            best = best[np.argsort(-eligible[best], kind="stable")]
            tokens = (best if allowed is None else allowed[best]).tolist()
            # With other masks in the text, special tokens are kept, because the masks are special tokens.
            skip_special = len(mask_indices) == 1
            masks.append(
                tuple(self._filling(token, float(scores[token]), index, outputs, skip_special) for token in tokens)
            )
        return Fillings(tuple(masks), logits, truncated=outputs.truncated)

    def _candidate_ids(self, vocabulary: Vocabulary) -> NDArray[np.int64] | None:
        """Return the distinct token ids of the candidates; `None` for the whole vocabulary."""
        if not self.candidates:
            return None
        return np.unique([self.single_token_id(word, vocabulary) for word in self.candidates])

    def single_token_id(self, word: str, vocabulary: Vocabulary) -> int:
        """Return the id of a word that is one token of the vocabulary.

        Raises:
            InputError: the word is unknown, or consists of several tokens.
        """
        ids = vocabulary.token_ids(word)
        if len(ids) != 1:
            found = f"{len(ids)} tokens" if ids else "unknown to it"
            raise InputError(f"expected a word that is one token of the vocabulary, found {word!r}, which is {found}")
        return ids[0]

    def _filling(self, token: int, score: float, index: int, outputs: Outputs, skip_special: bool) -> Filling:
        """Put `token` in the place of the mask at `index`."""
        decode, ids = outputs.vocabulary.decode, outputs.encodings[0].ids
        sequence = decode([*ids[:index], token, *ids[index + 1 :]], skip_special_tokens=skip_special)
        return Filling(token, decode([token]), score, sequence)

    def inputs(self, record: Record) -> tuple[TextInput, ...]:
        return (TextInput(record.text()),)

    def example(self, record: Record) -> Example:
        """Convert a row with a text that has masks, and the word for each mask in `label` or `labels`."""
        text = record.text()
        words = record.labels() if "labels" in record.fields else [record.label()]
        if text.count(self.mask_token) != len(words):
            raise DataError(
                f"{record.where}: expected as many {self.mask_token} in the text as words, "
                f"found {text.count(self.mask_token)} and {len(words)}"
            )
        return Example((TextInput(text),), words)

    def target_error(self, example: Example, windows: Sequence[Encoding], vocabulary: Vocabulary) -> str | None:
        """Check that every word is one token, and that no mask was truncated."""
        try:
            for word in example.target:
                self.single_token_id(word, vocabulary)
        except InputError as error:
            return str(error)
        found, expected = self.num_vectors(windows[0]), len(example.target)
        if found == expected:
            return None
        return f"expected {expected} masks within the model's maximum length, found {found}"

    def score(self, outputs: Sequence[Outputs], examples: Sequence[Example]) -> dict[str, float]:
        """Compute accuracy, top-5 accuracy and perplexity over all masks; truncated masks are left out."""
        ranks, losses = [], []
        for output, example in zip(outputs, examples, strict=True):
            expected = [self.single_token_id(word, output.vocabulary) for word in example.target]
            # Not strict: truncation may have removed the last masks.
            for logits, token in zip(output.arrays[0].astype(np.float64), expected, strict=False):
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
        found, expected = (np.concatenate([output.arrays[0] for output in part]) for part in (outputs, reference))
        return {
            "token_agreement": float((found.argmax(axis=-1) == expected.argmax(axis=-1)).mean()),
            "mean_abs_logit_drift": float(np.abs(found - expected).mean()),
        }

    def sample_inputs(self, texts: Sequence[str]) -> list[TextInput]:
        """Mask one of the first five words of each text, which truncation cannot remove."""
        inputs = []
        for text in texts:
            words = text.split() or [text]
            words[min(len(words) // 2, 4)] = self.mask_token
            inputs.append(TextInput(" ".join(words)))
        return inputs
