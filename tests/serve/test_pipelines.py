"""The Hugging Face pipelines' shapes, by `huggingface_hub.InferenceClient` over loopback and by literal bodies."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fastapi.testclient import TestClient
from huggingface_hub import InferenceClient, close_session
from huggingface_hub.errors import HfHubHTTPError

from bert_runtime import load
from bert_runtime.numerics import sigmoid, softmax
from bert_runtime.tasks import TextClassification
from bert_runtime.tasks.text_classification import PROBLEM_TYPES
from bert_serve.http.pipeline_answers import pipeline_answer

from ..runtime.outputs import outputs_of
from ..task_bundles import TaskBundles
from .closeness import assert_close
from .conftest import StartClient, StartServer

TEXT = "the train goes to paris, not to rome"
CONTEXT = f"{TEXT}. my card is lost. " * 5  # several windows

pytestmark = pytest.mark.usefixtures("hub_cache")  # without the user's token

StartInferenceClient = Callable[[str], InferenceClient]


@pytest.fixture
def start_inference_client(start_server: StartServer, task_bundles: TaskBundles) -> Iterator[StartInferenceClient]:
    """A function that serves one bundle, and returns a client of the server's address."""
    yield lambda name: InferenceClient(model=start_server({name: task_bundles[name]}))
    close_session()


def ask(client: TestClient, name: str, inputs: Any, **parameters: Any) -> Any:
    """Return the answer of a model."""
    response = client.post(f"/models/{name}", json={"inputs": inputs, "parameters": parameters})
    assert response.status_code == 200, response.text
    return response.json()


def test_the_hub_client_gets_entities_with_their_characters(
    start_inference_client: StartInferenceClient, task_bundles: TaskBundles
) -> None:
    client = start_inference_client("token-classification")
    found = client.token_classification(CONTEXT)
    expected = load(task_bundles["token-classification"], threads=1)(CONTEXT).to_dict()
    assert [(entity.entity_group, entity.word, entity.start, entity.end) for entity in found] == [
        (entity["entity_group"], entity["word"], entity["start"], entity["end"]) for entity in expected
    ]
    assert found
    assert all(CONTEXT[entity.start : entity.end] == entity.word for entity in found)
    tokens = client.token_classification(TEXT, aggregation_strategy="none")
    assert {token.entity[:2] for token in tokens} <= {"B-", "I-"}
    assert client.token_classification(TEXT, ignore_labels=["city", "O"]) == []


def test_the_hub_client_gets_spans(start_inference_client: StartInferenceClient, task_bundles: TaskBundles) -> None:
    client = start_inference_client("question-answering")
    expected = load(task_bundles["question-answering"], threads=1)(question="where to?", context=CONTEXT).to_dict()
    found = client.question_answering("where to?", CONTEXT)
    assert (found.answer, found.start, found.end) == (expected["answer"], expected["start"], expected["end"])
    assert CONTEXT[found.start : found.end] == found.answer
    two = client.question_answering("where to?", CONTEXT, top_k=2, max_answer_len=1, handle_impossible_answer=True)
    assert len(two) == 2


def test_the_hub_client_gets_words_for_a_mask(
    start_inference_client: StartInferenceClient, task_bundles: TaskBundles
) -> None:
    client, text = start_inference_client("fill-mask"), "my [MASK] is lost"
    expected = load(task_bundles["fill-mask"], threads=1)(text).to_dict()
    found = client.fill_mask(text)
    assert [(word.token, word.token_str, word.sequence) for word in found] == [
        (word["token"], word["token_str"], word["sequence"]) for word in expected
    ]
    assert len(client.fill_mask(text, top_k=2)) == 2
    assert {word.token_str for word in client.fill_mask(text, targets=["card", "train"])} == {"card", "train"}


def test_the_hub_client_gets_all_labels_best_first(
    start_inference_client: StartInferenceClient, task_bundles: TaskBundles
) -> None:
    client = start_inference_client("text-classification")
    result: Any = load(task_bundles["text-classification"], threads=1)(TEXT)
    found = client.text_classification(TEXT)
    assert [label.label for label in found] == [label for label, _ in result.top()]
    assert [label.score for label in found] == pytest.approx([score for _, score in result.top()], abs=1e-6)
    assert [label.label for label in client.text_classification(TEXT, top_k=1)] == [result.label]
    independent = client.text_classification(TEXT, function_to_apply="sigmoid")
    scores = sorted(sigmoid(result.logits).tolist(), reverse=True)
    assert [label.score for label in independent] == pytest.approx(scores, abs=1e-6)


def test_the_hub_client_gets_vectors_and_similarities(
    start_inference_client: StartInferenceClient, task_bundles: TaskBundles
) -> None:
    client, texts = start_inference_client("sentence-embedding"), ["hello", TEXT]
    vectors = load(task_bundles["sentence-embedding"], threads=1).encode(texts)
    np.testing.assert_allclose(client.feature_extraction(texts), vectors, atol=1e-6)
    assert client.feature_extraction("hello").shape == (1, 32)
    short = client.feature_extraction(texts, dimensions=8, normalize=True, truncate=True, truncation_direction="right")
    np.testing.assert_allclose(np.linalg.norm(short, axis=1), 1, atol=1e-6)
    assert short.shape == (2, 8)
    similarities = client.sentence_similarity("hello", other_sentences=["hello", TEXT])
    assert similarities == pytest.approx([1, float(vectors[0] @ vectors[1])], abs=1e-6)


def test_the_hub_client_names_one_of_several_models_in_its_address(
    start_server: StartServer, task_bundles: TaskBundles
) -> None:
    url = start_server({"a/b": task_bundles["text-classification"], "c": task_bundles["fill-mask"]})
    assert len(InferenceClient(model=f"{url}/models/a/b").text_classification("hello")) == 3
    with pytest.raises(HfHubHTTPError, match="404"):
        InferenceClient(model=url).text_classification("hello")
    with pytest.raises(HfHubHTTPError, match=r"expected at least one \[MASK\], found none"):
        InferenceClient(model=f"{url}/models/c").fill_mask("hello")
    close_session()


def test_lists_of_inputs_have_lists_of_answers(tasks_client: TestClient) -> None:
    for name, one in {
        "token-classification": TEXT,
        "question-answering": {"question": "where to?", "context": TEXT},
        "fill-mask": "my [MASK] is lost",
        "replaced-token-detection": TEXT,
    }.items():
        alone, both = ask(tasks_client, name, one), ask(tasks_client, name, [one, one])
        assert_close(both, [alone, alone])
        assert ask(tasks_client, name, []) == []
    alone, both = ask(tasks_client, "feature-extraction", TEXT), ask(tasks_client, "feature-extraction", [TEXT, TEXT])
    assert np.array(alone).shape[0] == 1  # each text has an axis of its own, as in the pipeline
    assert_close(both, [alone, alone])
    for name in ("text-classification", "reranker", "sentence-embedding"):
        (alone,) = ask(tasks_client, name, TEXT)  # a list of lists also for one input
        assert_close(ask(tasks_client, name, [TEXT, TEXT]), [alone, alone])


def test_tasks_without_a_pipeline_have_shapes_alike(tasks_client: TestClient) -> None:
    (labels,) = ask(tasks_client, "next-sentence-prediction", {"text": "hello", "text_pair": "bye"})
    assert {label["label"] for label in labels} == {"is_next", "not_next"}
    assert sum(label["score"] for label in labels) == pytest.approx(1)
    tokens = ask(tasks_client, "replaced-token-detection", "hello card", threshold=0)
    assert [(token["token"], token["replaced"], token["start"]) for token in tokens] == [
        ("hello", True, 0), ("card", True, 6),
    ]  # fmt: skip


@pytest.mark.parametrize("problem_type", PROBLEM_TYPES)
def test_every_kind_of_classifier_scores_all_its_labels(problem_type: str) -> None:
    task = TextClassification(labels=("joy", "anger"), problem_type=problem_type)
    logits = np.array([-1.0, 2.0], dtype=np.float32)
    result = task.decode(outputs_of([logits])[0])
    scores = {"single_label": softmax(logits), "multi_label": sigmoid(logits), "regression": logits}
    for function, expected in [(None, scores[problem_type]), ("none", logits), ("sigmoid", sigmoid(logits))]:
        labels = pipeline_answer(task, {"function_to_apply": function})(result)
        assert_close(
            labels, [{"label": "anger", "score": float(expected[1])}, {"label": "joy", "score": float(expected[0])}]
        )


def test_truncated_answers_say_so(tasks_client: TestClient) -> None:
    (labels,) = ask(tasks_client, "text-classification", "card " * 100)
    assert all(label["truncated"] for label in labels)
    response = tasks_client.post("/models/sentence-embedding", json={"inputs": ["a", "card " * 100], "truncate": False})
    assert response.status_code == 413
    assert response.json()["error"].startswith("input 1: expected at most 64 tokens")


def test_the_path_may_name_the_task(tasks_client: TestClient) -> None:
    body = {"inputs": "hello", "options": {"wait_for_model": True}}
    for name in ("feature-extraction", "sentence-similarity"):
        assert tasks_client.post(f"/models/sentence-embedding/pipeline/{name}", json=body).status_code == 200
    assert tasks_client.post("/models/text-classification/pipeline/text-classification", json=body).status_code == 200
    response = tasks_client.post("/models/text-classification/pipeline/fill-mask", json=body)
    assert response.status_code == 424
    tasks = "text-classification and zero-shot-classification"
    assert response.json() == {"error": f"model 'text-classification' is for {tasks}, found 'fill-mask'"}


def test_embeddings_have_the_shape_that_the_model_gives_them(start_client: StartClient, embedding_bundle: Path) -> None:
    client = start_client({"toy": embedding_bundle})
    texts, model = ["hello there", "my card"], load(embedding_bundle)
    for options in ({"dimensions": 8}, {"normalize": True}):
        found = client.post("/", json={"inputs": texts, "parameters": options}).json()
        assert found == pytest.approx(model.encode(texts, **options), abs=1e-3)  # type: ignore[arg-type]
    bits = client.post("/", json={"inputs": texts, "parameters": {"embedding_precision": "binary"}}).json()
    assert bits == model.encode(texts, precision="binary").tolist()
    for one in ({"text": "hello there", "id": 7}, {"text": "hello there", "text_pair": None}):
        assert client.post("/", json={"inputs": one}).json() == client.post("/", json={"inputs": "hello there"}).json()
    assert client.post("/", json={"inputs": []}).json() == []
    long = {"source_sentence": "card " * 600, "sentences": ["card"]}
    assert client.post("/", json={"inputs": long, "parameters": {"truncate": False}}).status_code == 413
    assert client.post("/", json={"inputs": long}).json() == pytest.approx([1], abs=0.2)


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("fill-mask", {"inputs": "a [MASK]", "parameters": {"stride": 3}}, "targets, top_k; found stride"),
        ("fill-mask", {"inputs": "a [MASK]", "parameters": {"top_k": "many"}}, "top_k"),
        ("fill-mask", {"inputs": ["a [MASK]", "b"]}, "input 1: expected at least one [MASK], found none"),
        ("text-classification", {"inputs": "a", "parameters": {"top_k": 0}}, "top_k must be a whole number"),
        ("text-classification", {"inputs": "a", "parameters": {"function_to_apply": "tanh"}}, "sigmoid, softmax, none"),
        (
            "text-classification",
            {"inputs": "a", "parameters": {"function_to_apply": ["softmax"]}},
            "function_to_apply must be sigmoid, softmax, none, found ['softmax']",
        ),
        ("token-classification", {"inputs": "a", "parameters": {"ignore_labels": "O"}}, "must be a list of labels"),
        ("token-classification", {"inputs": "a", "parameters": {"aggregation_strategy": "best"}}, "aggregation"),
        ("question-answering", {"inputs": "a"}, "input 0: expected a pair of texts, found one"),
        ("sentence-embedding", {"inputs": "a", "normalize": False}, "normalize=False is not possible"),
        ("sentence-embedding", {"inputs": "a", "normalize": "yes"}, "normalize must be true or false, found 'yes'"),
        ("sentence-embedding", {"inputs": "a", "truncate": "false"}, "truncate must be true or false, found 'false'"),
        ("feature-extraction", {"inputs": "a", "parameters": {"truncate": 0}}, "truncate must be true or false"),
        ("sentence-embedding", {"inputs": "a", "truncation_direction": "left"}, "truncation_direction: expected right"),
        ("feature-extraction", {"inputs": "a", "truncation_direction": "left"}, "truncation_direction: expected right"),
        ("feature-extraction", {"inputs": "a", "normalize": True}, "special_tokens, word_pooling; found normalize"),
        (
            "feature-extraction",
            {"inputs": "a", "word_pooling": "max"},
            "a word_pooling of none, first, mean, found 'max'",
        ),
        ("feature-extraction", {"inputs": {"text": "a", "text_pair": "b"}}, "input 0: expected one text, found a pair"),
        ("sentence-embedding", {"inputs": "a", "dimensions": 99}, "dimensions must lie in 1 to 32"),
        ("sentence-embedding", {"inputs": {"source_sentence": "a"}}, "and a list of sentences, found source_sentence"),
        (
            "sentence-embedding",
            {"inputs": {"source_sentence": 1, "sentences": []}},
            "inputs.source_sentence: expected a text",
        ),
        (
            "sentence-embedding",
            {"inputs": {"source_sentence": "a", "sentences": [None]}},
            "inputs.sentences.0: expected a",
        ),
        (
            "sentence-embedding",
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "parameters": {"prompt_name": "query"}},
            "prompt_name",
        ),
        (
            "sentence-embedding",
            {"inputs": {"source_sentence": "a", "sentences": ["b"]}, "embedding_precision": "binary"},
            "expected vectors of float32, of which there are cosines, found int8",
        ),
        ("text-classification", {"inputs": 3}, "inputs: expected a text or an object, found int"),
        (
            "text-classification",
            {"inputs": ["a", None]},
            "inputs: item 1: expected a text or an object, found NoneType",
        ),
        ("text-classification", {"texts": "a"}, "inputs: Field required"),
        ("text-classification", {"inputs": {"title": "a"}}, "input 0: expected a text"),
    ],
)
def test_bad_requests_say_what_was_expected(tasks_client: TestClient, name: str, body: Any, message: str) -> None:
    response = tasks_client.post(f"/models/{name}", json=body)
    assert response.status_code == 422
    assert message in response.json()["error"]
