"""The format of the Hugging Face pipelines and of the Inference API: `{"inputs": …, "parameters": {…}}` for any task.

`huggingface_hub.InferenceClient(model="http://host:8080")` posts to `/`; where several models are served, its model is
`http://host:8080/models/NAME`. See `bert_serve.http.pipeline_answers` for parameters and answers.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Body
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field
from pydantic_core import PydanticCustomError
from starlette.requests import Request
from starlette.responses import Response

from bert_runtime.errors import InputError
from bert_runtime.inputs import as_text_input
from bert_runtime.numerics import FloatArray
from bert_runtime.tasks import FeatureExtraction, SentenceEmbedding, TextClassification
from bert_runtime.vector_quantization import Vectors
from bert_serve.errors import WrongTaskError
from bert_serve.http.json_response import JSONResponse, json_list
from bert_serve.http.json_route import JSONRoute
from bert_serve.http.model_choice import check_truncation_side
from bert_serve.http.pipeline_answers import pipeline_answer, runtime_options
from bert_serve.http.vectors import embed, similarities_to_first
from bert_serve.http.zero_shot import ZERO_SHOT, is_zero_shot, zero_shot_answer
from bert_serve.serving.served_model import ServedModel

__all__ = ["error_body", "router"]


class PipelineError(BaseModel):
    """A failure."""

    error: str


router = APIRouter(
    route_class=JSONRoute,
    tags=["Hugging Face pipelines"],
    responses={"4XX": {"model": PipelineError, "description": "The request failed"}},
)

_HUB_TASKS = {
    SentenceEmbedding.name: ("feature-extraction", "sentence-similarity"),
    TextClassification.name: (TextClassification.name, ZERO_SHOT),
}
"""The hub's names of what models of a task do, where there are others than the task's."""

_LISTED = ("text-classification", "next-sentence-prediction", "sentence-embedding")
"""Tasks whose answer for one input is a list of one answer, as in the hosted API."""

_QUESTION = {"question": "Where to?", "context": "The train goes to Paris. It is late."}

_EXAMPLES: dict[str, Any] = {
    "text-classification": {
        "summary": "Labels of a text, best first",
        "value": {"inputs": "Where is my parcel?", "parameters": {"top_k": 2}},
    },
    ZERO_SHOT: {
        "summary": "Labels of your own, by a model of natural language inference",
        "value": {"inputs": "Where is my parcel?", "parameters": {"candidate_labels": ["parcel", "weather"]}},
    },
    "token-classification": {
        "summary": "Entities with their characters",
        "value": {"inputs": "The train goes to Paris.", "parameters": {"aggregation_strategy": "simple"}},
    },
    "question-answering": {
        "summary": "The best answers to a question",
        "value": {"inputs": _QUESTION, "parameters": {"top_k": 2, "max_answer_len": 10}},
    },
    "fill-mask": {
        "summary": "The most probable words for a mask",
        "value": {"inputs": "The train to [MASK] is late.", "parameters": {"top_k": 3}},
    },
    "next-sentence-prediction": {
        "summary": "Whether a text continues another",
        "value": {"inputs": {"text": "The train is late.", "text_pair": "It comes at nine."}},
    },
    "replaced-token-detection": {
        "summary": "Whether each token was replaced",
        "value": {"inputs": ["The train is late.", "The train is bank."], "parameters": {"threshold": 0.5}},
    },
    "sentence-embedding": {
        "summary": "Embeddings (feature-extraction)",
        "value": {"inputs": ["Where is my parcel?", "My card is lost."]},
    },
    "rerank": {
        "summary": "Relevance of a document (text_pair) to a query (text)",
        "value": {"inputs": {"text": "Where is my parcel?", "text_pair": "It is on its way."}},
    },
    "sparse-embedding": {
        "summary": "Weights of the vocabulary's tokens",
        "value": {"inputs": "Where is my parcel?", "parameters": {"top_k": 3}},
    },
    "feature-extraction": {
        "summary": "A vector for each token (feature-extraction)",
        "value": {"inputs": "Where is my parcel?", "parameters": {"special_tokens": False}},
    },
    "sentence-embedding, similarity": {
        "summary": "Cosine similarities (sentence-similarity)",
        "value": {"inputs": {"source_sentence": "My card is lost.", "sentences": ["Where is my card?", "Hello!"]}},
    },
}

_ANSWERS: dict[str, Any] = {
    "text-classification": {"value": [[{"label": "parcel", "score": 0.97}, {"label": "refund", "score": 0.02}]]},
    ZERO_SHOT: {"value": [{"label": "parcel", "score": 0.94}, {"label": "weather", "score": 0.06}]},
    "token-classification": {
        "value": [{"entity_group": "LOC", "score": 0.99, "word": "Paris", "start": 18, "end": 23}]
    },
    "question-answering": {"value": {"answer": "Paris", "score": 0.94, "start": 18, "end": 23}},
    "fill-mask": {
        "value": [{"score": 0.93, "token": 3000, "token_str": "paris", "sequence": "the train to paris is late."}]
    },
    "sentence-embedding": {"value": [[0.031, -0.046], [0.012, 0.077]]},
    "rerank": {"value": {"score": 0.97, "logit": 3.48}},
    "sparse-embedding": {"value": {"sparse_embedding": {"parcel": 2.42, "package": 1.87}}},
    "feature-extraction": {"value": [[[0.031, -0.046], [0.284, 0.113], [-0.025, 0.098]]]},
    "sentence-embedding, similarity": {"value": [0.82, 0.07]},
}


_TEXT_FIELDS = {"text", "text_pair", "question", "context"}


def _check_kinds(value: object) -> object:
    """Refuse other kinds of inputs in one sentence without texts, where a union has an error for each of its parts."""
    for index, item in enumerate(value) if isinstance(value, list) else [(None, value)]:
        where = "" if index is None else f"item {index}: "
        if not isinstance(item, str | dict):
            raise PydanticCustomError("inputs", f"{where}expected a text or an object, found {type(item).__name__}")
        for name, text in item.items() if isinstance(item, dict) else ():
            if name in _TEXT_FIELDS and not isinstance(text, str | None):
                raise PydanticCustomError("inputs", f"{where}{name}: expected a text, found {type(text).__name__}")
    return value


_Inputs = Annotated[str | dict[str, Any] | list[str | dict[str, Any]], BeforeValidator(_check_kinds)]


class PipelineRequest(BaseModel):
    """One input or a list of inputs, and the pipeline's parameters."""

    model_config = ConfigDict(extra="allow")  # feature-extraction has its parameters beside the inputs

    inputs: _Inputs = Field(
        description="A text; `text` and `text_pair`; `question` and `context`; `source_sentence` and `sentences`; or a "
        "list of such inputs."
    )
    parameters: dict[str, Any] | None = None
    options: dict[str, Any] | None = Field(None, description="Settings of the hosted API; not read.")

    @property
    def all_parameters(self) -> dict[str, Any]:
        """The parameters, wherever they stand."""
        return {**(self.model_extra or {}), **(self.parameters or {})}


_RequestBody = Annotated[PipelineRequest, Body(openapi_examples=_EXAMPLES)]
_RESPONSES: dict[int | str, Any] = {200: {"content": {"application/json": {"examples": _ANSWERS}}}}


def error_body(status: int, message: str) -> dict[str, Any]:
    """Return a failure as the Inference API does."""
    return {"error": message}


@router.post("/", summary="Answers of the only model", responses=_RESPONSES)
async def answer(body: _RequestBody, request: Request) -> Response:
    """Return the answer for one input, or a list of answers for a list of inputs.

    A classifier's answer is a list of lists also for one input, and so are embeddings, as in the hosted API. Vectors of
    tokens have an axis of one more for each text, as in the pipeline: [1, tokens, width].
    """
    return await _answer(request.app.state.models.resolve(), body, request)


@router.post(
    "/models/{name:path}/pipeline/{task}", summary="Answers of a model, for one of its tasks", responses=_RESPONSES
)
async def answer_task(body: _RequestBody, request: Request, name: str, task: str) -> Response:
    """Do what `/models/{name}` does, and check that the model is for this task."""
    served: ServedModel = request.app.state.models.resolve(name)
    found = served.model.task.name
    tasks = _HUB_TASKS.get(found, (found,))
    if task not in tasks:
        raise WrongTaskError(f"model {served.name!r} is for {' and '.join(tasks)}, found {task!r:.50}")
    if task == ZERO_SHOT:
        return JSONResponse(await zero_shot_answer(served, body.inputs, body.all_parameters, request))
    return await _answer(served, body, request)


@router.post("/models/{name:path}", summary="Answers of a model", responses=_RESPONSES)
async def answer_model(body: _RequestBody, request: Request, name: str) -> Response:
    """Do what `/` does, with the model of this name."""
    return await _answer(request.app.state.models.resolve(name), body, request)


async def _answer(served: ServedModel, body: PipelineRequest, request: Request) -> Response:
    task, inputs = served.model.task, body.inputs
    parameters = body.all_parameters
    if is_zero_shot(task, parameters):
        return JSONResponse(await zero_shot_answer(served, inputs, parameters, request))
    truncate = True
    if isinstance(task, SentenceEmbedding | FeatureExtraction):
        truncate = _may_truncate(parameters.pop("truncate", None))
        check_truncation_side(served, parameters.pop("truncation_direction", None))
    options, shaping = runtime_options(task, parameters)
    listed = inputs if isinstance(inputs, list) else [inputs]
    served.engine.limits.check_number(len(listed))
    if isinstance(task, SentenceEmbedding):

        async def vectors_of(texts: list[str]) -> Vectors:
            vectors, _ = await embed(served, texts, request, truncate=truncate, **shaping, **options)
            return vectors

        if isinstance(inputs, dict) and "source_sentence" in inputs:
            return JSONResponse(await _similarities(inputs, vectors_of))
        return JSONResponse(await vectors_of(_texts(listed)) if listed else [])
    shape = pipeline_answer(task, shaping)
    results = await served.results(listed, request, options=options, truncate=truncate)
    answers = [shape(result) for result in results]
    if isinstance(task, FeatureExtraction):
        return await json_list(answers if inputs is listed else answers[0])
    return JSONResponse(answers if inputs is listed or task.name in _LISTED else answers[0])


def _may_truncate(asked: object) -> bool:
    """Return whether long texts may be truncated, as by default; raise `InputError` for another value than a flag."""
    if not isinstance(asked, bool | None):
        raise InputError(f"truncate must be true or false, found {asked!r:.50}")
    return asked is not False


def _texts(inputs: Sequence[str | Mapping[str, Any]]) -> list[str]:
    """Return the texts of an embedding model's inputs."""
    texts = []
    for index, item in enumerate(inputs):
        try:
            value = as_text_input(item)
        except InputError as error:
            raise InputError(error.reason, index) from None
        if value.text_pair is not None:
            raise InputError("expected one text, found a pair of texts", index)
        texts.append(value.text)
    return texts


async def _similarities(inputs: Mapping[str, Any], vectors_of: Callable[[list[str]], Awaitable[Vectors]]) -> FloatArray:
    """Return the cosine similarity of a text with each of several."""
    source, sentences = inputs["source_sentence"], inputs.get("sentences")
    if set(inputs) != {"source_sentence", "sentences"} or not isinstance(sentences, list):
        raise InputError(f"expected source_sentence and a list of sentences, found {', '.join(inputs):.100}")
    for index, text in enumerate([source, *sentences]):
        if not isinstance(text, str):
            where = f"sentences.{index - 1}" if index else "source_sentence"
            raise InputError(f"inputs.{where}: expected a text, found {type(text).__name__}")
    return similarities_to_first(await vectors_of([source, *sentences]))
