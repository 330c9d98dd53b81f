"""Requests and answers of text-embeddings-inference's routes."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StrictInt

from bert_serve.http.text_inputs import TextList, TextsOrIds, TokenIdList

__all__ = [
    "DecodeRequest",
    "EmbedAllRequest",
    "EmbedRequest",
    "EmbedSparseRequest",
    "PredictRequest",
    "Prediction",
    "Rank",
    "SimilarityRequest",
    "SparseValue",
    "TEIError",
    "TEIRerankRequest",
    "TextOptions",
    "TokenizeRequest",
    "TokenizedToken",
    "example",
]


def example(value: Any) -> ConfigDict:
    """Return the configuration of a model whose schema has an example."""
    return ConfigDict(json_schema_extra={"examples": [value]})


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


_Side = Annotated[Literal["left", "right"], BeforeValidator(_lower)]


class _Request(BaseModel):
    model: str | None = Field(
        default=None, description="Name of the model; without one, the only model that does the route's task."
    )


class TextOptions(BaseModel):
    """Options of reading texts."""

    truncate: bool | None = Field(
        default=None, description="Whether long texts may be truncated (the default), or else are refused."
    )
    truncation_direction: _Side | None = Field(
        default=None,
        description="The side that truncation drops, `Left` or `Right`; only the tokenizer's own is possible.",
    )
    prompt_name: str | None = Field(
        default=None, description="Name of the bundle's prompt that is put in front of each text; for embeddings."
    )


class EmbedRequest(_Request, TextOptions):
    """Texts, or token ids of the model's own vocabulary."""

    model_config = example({"inputs": ["What is Deep Learning?", "hello"]})

    inputs: TextsOrIds
    normalize: bool = Field(default=True, description="Whether vectors have length 1.")
    dimensions: StrictInt | None = Field(
        default=None, description="How many first dimensions to keep (Matryoshka models)."
    )


class EmbedAllRequest(_Request, TextOptions):
    """Texts, or token ids of the model's own vocabulary."""

    model_config = example({"inputs": ["What is Deep Learning?", "hello"]})

    inputs: TextsOrIds


class EmbedSparseRequest(_Request, TextOptions):
    """Texts, or token ids of the model's own vocabulary."""

    model_config = example({"inputs": ["What is Deep Learning?", "hello"]})

    inputs: TextsOrIds


class SparseValue(BaseModel):
    """A token of the vocabulary and its weight."""

    index: int = Field(description="The token's id.")
    value: float


class SimilaritySentences(BaseModel):
    """A sentence, and those to compare with it."""

    source_sentence: str
    sentences: TextList


class SimilarityRequest(_Request):
    """A sentence, and those to compare with it."""

    model_config = example(
        {"inputs": {"source_sentence": "I lost my card", "sentences": ["My card is gone", "The sun shines"]}}
    )

    inputs: SimilaritySentences
    parameters: TextOptions | None = None


class PredictRequest(_Request, TextOptions):
    """A text, a pair of texts, or a batch of both."""

    model_config = example({"inputs": [["I lost my card"], ["Is it open?", "The bank is open."]]})

    inputs: str | TextList | Annotated[list[TextList], Field(fail_fast=True)] = Field(
        description="A text, a pair `[text, text]`, or a batch of lists of one or two texts."
    )
    raw_scores: bool = Field(default=False, description="Whether scores are the model's logits.")


class TEIRerankRequest(_Request, TextOptions):
    """A query, and the texts to sort by their relevance to it."""

    model_config = example({"query": "Where is my parcel?", "texts": ["The bank is closed.", "Your parcel is late."]})

    query: str
    texts: TextList
    raw_scores: bool = Field(default=False, description="Whether scores are the model's logits; otherwise in 0 to 1.")
    return_text: bool = Field(default=False, description="Whether the answer repeats the texts.")


class TokenizeRequest(_Request):
    """A text, or several."""

    model_config = example({"inputs": "I lost my card"})

    inputs: str | TextList
    add_special_tokens: bool = True
    prompt_name: str | None = Field(
        default=None, description="Name of the bundle's prompt that is put in front of each text; for embeddings."
    )


class DecodeRequest(_Request):
    """Token ids of one text, or of several."""

    model_config = example({"ids": [[101, 1045, 2439, 2026, 4003, 102]]})

    ids: TokenIdList | Annotated[list[TokenIdList], Field(fail_fast=True)]
    skip_special_tokens: bool = True


class Prediction(BaseModel):
    """A label and its score."""

    label: str
    score: float
    model: str | None = Field(default=None, description="Of a cascade, the model that answered: small or large.")


class Rank(BaseModel):
    """A text's relevance."""

    index: int = Field(description="Number of the text in the request.")
    score: float
    text: str | None = None


class TokenizedToken(BaseModel):
    """A token, and its place in the text as UTF-8 bytes."""

    id: int
    text: str
    special: bool
    start: int | None
    stop: int | None


class TEIError(BaseModel):
    """An error as TEI's clients read it."""

    error: str
    error_type: Literal["Backend", "Empty", "Overloaded", "Unhealthy", "Validation"]
