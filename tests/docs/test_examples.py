"""The programs in `docs/examples`: run as their docstrings say, on toy models."""

import ast
import importlib.util
import io
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fastapi.testclient import TestClient

from bert_export import export
from bert_models import EncoderConfig, TaskModel, save_model
from bert_runtime import Entity, InputError, load
from bert_runtime.records.retrieval import read_retrieval_folder
from bert_runtime.tasks import Task, TokenClassification

from ..task_bundles import TaskBundles

EXAMPLES = Path(__file__).parents[2] / "docs" / "examples"
PROGRAMS = sorted(EXAMPLES.glob("*.py"))

Main = Callable[..., ModuleType]


def import_example(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Main:
    """Run an example's `main` with command-line arguments; returns the module."""

    def run(name: str, *arguments: object) -> ModuleType:
        module = import_example(name)
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *map(str, arguments)])
        module.main()
        return module

    return run


def toy_bundle(task: Task, config: EncoderConfig, vocab: Path, folder: Path) -> Path:
    (folder / "checkpoint").mkdir()
    save_model(TaskModel(config, task), folder / "checkpoint", tokenizer_from=vocab)
    export(folder / "checkpoint", folder / "bundle", precisions=("fp32",))
    return folder / "bundle"


@pytest.mark.parametrize("path", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_example_is_short_and_says_how_to_run_it(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    docstring = ast.get_docstring(ast.parse(source)) or ""
    assert len(source.splitlines()) <= 60
    assert "Install:" in docstring
    assert f"{path.stem}" in docstring.split("Install:")[1]


def test_index_lists_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [path.name for path in PROGRAMS if f"]({path.name})" not in index] == []


@pytest.fixture
def client(classifier_bundle: Path, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    monkeypatch.setenv("BUNDLE", str(classifier_bundle))
    monkeypatch.setenv("THREADS", "1")
    return TestClient(import_example("fastapi_app").app)


def test_fastapi_app_classifies(client: TestClient, classifier_bundle: Path) -> None:
    texts = ["hello", "where is my card?", "hello " * 200]
    with client:
        assert "text-classification" in client.get("/health").json()["model"]
        response = client.post("/classify", json={"texts": texts})
    expected = [{**result.to_dict(), "truncated": result.truncated} for result in load(classifier_bundle)(texts)]
    assert response.status_code == 200
    assert [found["label"] for found in response.json()] == [result["label"] for result in expected]
    assert [found["score"] for found in response.json()] == pytest.approx([result["score"] for result in expected])
    assert [found["truncated"] for found in response.json()] == [False, False, True]


@pytest.mark.parametrize(
    "body",
    [
        b'{"texts": []}',
        b'{"texts": "hello"}',
        b'{"texts": [null]}',
        b'{"texts": ["hello", "\\ud800"]}',
        json.dumps({"texts": ["x" * 20_001]}).encode(),
        json.dumps({"texts": ["x"] * 65}).encode(),
        b"{",
    ],
    ids=["no text", "a string", "null", "a lone surrogate", "a long text", "many texts", "no JSON"],
)
def test_fastapi_app_refuses_bad_requests(client: TestClient, body: bytes) -> None:
    with client:
        response = client.post("/classify", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 422
        assert all(problem["msg"] and "input" not in problem for problem in response.json()["detail"])
        assert client.post("/classify", json={"texts": [""]}).status_code == 200


def test_fastapi_app_names_inputs_that_the_model_refuses(client: TestClient) -> None:
    def refuse(texts: list[str]) -> None:
        raise InputError("expected a pair of texts, found one", 3)

    with client as served:
        served.app.state.model = refuse  # type: ignore[attr-defined]
        response = served.post("/classify", json={"texts": ["hello"]})
    assert response.status_code == 422
    assert response.json() == {"detail": [{"loc": [], "msg": "input 3: expected a pair of texts, found one"}]}


def test_parquet_batch_adds_columns(
    run: Main, classifier_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    texts = ["hello", None, "", "where is my card?", "bye"]
    source, output = tmp_path / "messages.parquet", tmp_path / "labelled.parquet"
    table = pa.table({"id": [1, 2, 3, 4, 5], "text": texts})
    pq.write_table(table, source, row_group_size=2)
    module = run("parquet_batch", classifier_bundle, source, output)
    found = pq.read_table(output)
    assert found.select(["id", "text"]).equals(table)
    model = load(classifier_bundle)
    expected = [None if text is None else model(text).label for text in texts]
    assert found.column("label").to_pylist() == expected
    assert found.column("score").null_count == 1
    assert "5/5" in capsys.readouterr().err
    module.classify_file(model, source, tmp_path / "again.parquet", "text", batch_rows=2)
    assert pq.read_table(tmp_path / "again.parquet").column("label").to_pylist() == expected
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "again.parquet",
        "labelled.parquet",
        "messages.parquet",
    ]


def test_semantic_search_finds_equal_documents_first(
    run: Main, embedding_bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    documents = ["where is my card", "hello there", "the train is late", "money for a film"]
    (tmp_path / "documents.txt").write_text("\n\n".join(documents) + "\n")
    run("semantic_search", "index", embedding_bundle, tmp_path / "documents.txt", tmp_path / "index")
    capsys.readouterr()
    for query in documents:
        run("semantic_search", "search", embedding_bundle, tmp_path / "index", query, "--top", 3)
        lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
        assert lines[0] == ["1.000", query]
        assert len(lines) == 3
        assert [float(score) for score, _ in lines] == sorted((float(score) for score, _ in lines), reverse=True)


@pytest.fixture
def reranker_bundle(task_bundles: TaskBundles) -> Path:
    return task_bundles["reranker"]


def test_rerank_sorts_by_score(
    run: Main,
    reranker_bundle: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    passages = ["hello", "your card is here", "the train", "where is it", "money " * 30]
    query = "where is my card?"
    monkeypatch.setattr(sys, "stdin", io.StringIO("\n".join(passages) + "\n\n"))
    run("rerank", reranker_bundle, query, "--top", 4)
    lines = [line.strip().split("\t") for line in capsys.readouterr().out.splitlines()]
    model = load(reranker_bundle)
    scores = {passage: model((query, passage)).score for passage in passages}
    assert [passage for _, passage in lines] == [
        passage.strip() for passage in sorted(passages, key=lambda passage: -scores[passage])[:4]
    ]


def test_highlight_entities_marks_spans() -> None:
    module = import_example("highlight_entities")
    text = "<b> Paris & New York"
    entities = [Entity("city", 0.912, "Paris", 4, 9), Entity("a<b", 0.5, "New York", 12, 20)]
    colours: dict[str, str] = {}
    found = module.highlight(text, entities, colours)
    first, second = module.COLOURS[:2]
    assert colours == {"city": first, "a<b": second}
    assert found == (
        f'&lt;b&gt; <mark style="background: {first}" title="0.91">Paris <small>city</small></mark> &amp; '
        f'<mark style="background: {second}" title="0.50">New York <small>a&lt;b</small></mark>'
    )
    assert module.highlight("<", [], colours) == "&lt;"


def test_highlight_entities_writes_a_page(
    run: Main,
    toy_config: EncoderConfig,
    toy_vocab: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    bundle = toy_bundle(TokenClassification(labels=("O", "B-city", "I-city")), toy_config, toy_vocab, tmp_path)
    (tmp_path / "messages.txt").write_text("refund to paris\n\nmy card\n")
    capsys.readouterr()
    run("highlight_entities", bundle, tmp_path / "messages.txt")
    page = capsys.readouterr().out
    assert page.count("<p>") == 3
    count = sum(len(result.entities) for result in load(bundle)(["refund to paris", "", "my card"]))
    assert page.count("<mark") == count > 0


def test_csv_to_bundle_makes_a_classifier(
    run: Main,
    classifier_checkpoint: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [(f"where is my {thing}", "lost") for thing in ("card", "train", "book", "money") * 6]
    rows += [(f"hello {thing}", "greeting") for thing in ("there", "you", "film", "sun") * 6]
    (tmp_path / "tickets.csv").write_text("message,topic\n" + "".join(f"{text},{label}\n" for text, label in rows))
    columns = ("--columns", "text=message,label=topic", "--epochs", 2)
    bundle = tmp_path / "bundle"
    run("csv_to_bundle", classifier_checkpoint, tmp_path / "tickets.csv", bundle, *columns)
    out = capsys.readouterr().out
    assert "rows of" in out
    assert out.splitlines()[-1].startswith("accuracy ")
    assert load(bundle)("hello you").labels == ("greeting", "lost")
    dev = tmp_path / "dev.csv"
    dev.write_text("message,topic\nwhere is my film,lost\nhello sun,greeting\n")
    run("csv_to_bundle", classifier_checkpoint, tmp_path / "tickets.csv", bundle, *columns, "--dev", dev)
    assert (tmp_path / "bundle-checkpoint" / "training.json").is_file()


def test_squad_becomes_a_retrieval_data_set(run: Main, tmp_path: Path) -> None:
    paragraphs = [
        {
            "context": f"The {city} train leaves at {hour}.",
            "qas": [
                {
                    "id": f"{city}-{n}",
                    "question": f"{q} {city}?",
                    "answers": [{"text": f"{hour}", "answer_start": 21 + len(city)}],
                }
                for n, q in enumerate(("When to", "At what time to"))
            ]
            + [{"id": f"{city}-no", "question": "Who?", "answers": [], "is_impossible": True}],
        }
        for city, hour in (("Rome", 9), ("Bern", 8))
    ]
    file = tmp_path / "squad.json"
    file.write_text(json.dumps({"version": "2.0", "data": [{"title": "A_train", "paragraphs": paragraphs}]}))
    run("squad_retrieval", file, tmp_path / "folder")
    data = read_retrieval_folder(tmp_path / "folder")
    assert data.corpus == {"d0": "A train The Rome train leaves at 9.", "d1": "A train The Bern train leaves at 8."}
    assert list(data.queries.values()) == [
        "When to Rome?",
        "At what time to Rome?",
        "When to Bern?",
        "At what time to Bern?",
    ]
    assert data.qrels == {"q0": {"d0": 1}, "q1": {"d0": 1}, "q2": {"d1": 1}, "q3": {"d1": 1}}
