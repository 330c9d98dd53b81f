"""A served cascade: every format says which model answered, and metrics count the texts of each."""

import asyncio
import json
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from click.testing import CliRunner
from fastapi.testclient import TestClient
from tokenizers import Tokenizer

from bert_export.cli.main import main
from bert_runtime import load
from bert_runtime.bundle.manifest import Manifest
from bert_runtime.cascade import Cascade
from bert_runtime.tokenization import TextTokenizer
from bert_serve.errors import QueueFullError, TextTooLongError
from bert_serve.metrics import Metrics
from bert_serve.serving.cascade_engine import CascadeEngine, open_engine
from bert_serve.settings import EngineSettings

from .cascades import write_cascade
from .conftest import StartClient

WORDS = ("my", "card", "is", "lost", "at", "the", "bank", "please", "help", "good", "morning", "where", "late")


@pytest.fixture(scope="module")
def texts() -> list[str]:
    draw = random.Random(0)
    return [" ".join(draw.choices(WORDS, k=draw.randint(2, 12))) for _ in range(40)]


@pytest.fixture(scope="module")
def cascade(classifier_bundle: Path, texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_cascade(classifier_bundle, tmp_path_factory.mktemp("cascade") / "both", texts)


@pytest.fixture(scope="module")
def expected(cascade: Path, texts: list[str]) -> list[dict[str, Any]]:
    """Results of the loaded cascade, without a server."""
    found = [result.to_dict() for result in load(cascade, threads=1)(texts)]
    assert 10 < sum(result["model"] == "small" for result in found) < 30
    return found


def counted(client: TestClient, name: str) -> float:
    """Return how many texts of a model the metrics have counted."""
    lines = client.get("/metrics").text.splitlines()
    return next(float(line.split()[-1]) for line in lines if line.startswith(f'bert_texts_total{{model="{name}"}}'))


def test_each_format_says_which_model_answered(
    cascade: Path, texts: list[str], expected: list[dict[str, Any]], start_client: StartClient
) -> None:
    client = start_client({"both": cascade})
    pipeline = [answers[0] for answers in client.post("/", json={"inputs": texts, "parameters": {"top_k": 1}}).json()]
    assert pipeline == [{**result, "score": pytest.approx(result["score"], abs=1e-5)} for result in expected]
    tei = client.post("/predict", json={"inputs": [[text] for text in texts]}).json()
    models = [result["model"] for result in expected]
    assert [answers[0]["model"] for answers in tei] == models
    tensor = {"name": "text", "datatype": "BYTES", "shape": [len(texts)], "data": texts}
    answer = client.post("/v2/models/both/infer", json={"inputs": [tensor]}).json()
    assert [json.loads(text)["model"] for text in answer["outputs"][0]["data"]] == models
    assert client.get("/info").json()["model_type"]["classifier"]["label2id"].keys() == {
        result["label"] for result in tei[0]
    }
    assert counted(client, "both/small") == 3 * len(texts)
    assert counted(client, "both/large") == 3 * models.count("large")


def test_requests_at_once_have_their_own_answers(
    cascade: Path, texts: list[str], expected: list[dict[str, Any]], start_client: StartClient
) -> None:
    client = start_client({"both": cascade})
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda text: client.post("/", json={"inputs": text}).json()[0][0], texts))
    assert [(answer["label"], answer["model"]) for answer in found] == [
        (result["label"], result["model"]) for result in expected
    ]


def test_labels_of_a_request_are_refused(cascade: Path, start_client: StartClient) -> None:
    client = start_client({"both": cascade})
    parameters = {"candidate_labels": ["card", "bank"]}
    response = client.post("/", json={"inputs": "my card", "parameters": parameters})
    assert response.status_code == 422
    assert "a cascade has labels of its own" in response.text


@pytest.mark.parametrize("limit", [None, 12])
def test_limits_hold_for_the_tokens_of_both_models(
    limit: int | None, cascade: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = EngineSettings(load_options={"threads": 1}, max_tokens_per_text=limit)
    engine = open_engine(cascade, settings, "both", Metrics())
    assert isinstance(engine, CascadeEngine)
    short = TextTokenizer(Tokenizer.from_file(str(cascade / "large" / "tokenizer.json")), max_tokens=8, pad_token_id=0)
    monkeypatch.setattr(engine._large.model, "tokenizer", short)
    assert asyncio.run(engine.encode(["my card is lost"], truncate=False))
    for truncate in (True, False):
        if limit is None and truncate:  # may be cut for the large model
            assert asyncio.run(engine.encode(["my card is lost at the bank"], truncate=truncate))
        else:
            with pytest.raises(TextTooLongError, match="expected at most 8 tokens, found more than 8"):
                asyncio.run(engine.encode(["my card is lost at the bank"], truncate=truncate))
    engine.close()


def test_the_page_shows_it(
    cascade: Path, texts: list[str], expected: list[dict[str, Any]], start_client: StartClient
) -> None:
    client = start_client({"both": cascade}, page=True)
    (described,) = client.get("/page/models").json()["models"]
    (precision,) = described["precisions"]
    default = Manifest.read(cascade / "small").default_precision  # whichever is faster for a toy
    assert precision == f"{default} + {default}"
    for text, result in list(zip(texts, expected, strict=True))[:8]:
        body = {"model": "both", "precision": precision, "inputs": [{"text": text}]}
        assert client.post("/page/predict", json=body).json()["result"]["model"] == result["model"]
    refused = client.post("/page/attention", json={"model": "both", "input": {"text": "my card"}})
    assert "has no attention graph" in refused.text


def test_a_closed_engine_still_answers_what_it_has_begun(cascade: Path, texts: list[str]) -> None:
    settings = EngineSettings(load_options={"threads": 1})

    async def answer() -> list[str]:
        engine = open_engine(cascade, settings, "both", Metrics())
        assert isinstance(engine, CascadeEngine)
        begun = asyncio.create_task(engine.run(texts))
        while not engine._num_requests:
            await asyncio.sleep(0)
        engine.close()
        outputs = await begun
        with pytest.raises(QueueFullError):
            await engine.run(texts[:1])
        with pytest.raises(QueueFullError), engine._large.reserve(texts[:1]):
            pass
        return [result.to_dict()["model"] for result in await engine.decode(outputs)]

    model = load(cascade, threads=1)
    assert isinstance(model, Cascade)
    assert asyncio.run(answer()) == [result.to_dict()["model"] for result in model(texts)]


def test_the_large_model_answers_where_the_small_one_has_no_number(cascade: Path, texts: list[str]) -> None:
    model = load(cascade, threads=1)
    assert isinstance(model, Cascade)
    outputs = model.small.outputs(texts[:3])
    broken = [output._replace(arrays=(np.full_like(output.arrays[0], np.nan),)) for output in outputs]
    assert model.judge_small(broken)[1] == [0, 1, 2]


def test_batch_writes_the_model_beside_the_label(
    cascade: Path, texts: list[str], expected: list[dict[str, Any]], tmp_path: Path
) -> None:
    from pyarrow import parquet

    (tmp_path / "texts.txt").write_text("\n".join(texts), encoding="utf-8")
    command = ["batch", str(cascade), "--input", str(tmp_path / "texts.txt"), "--output", str(tmp_path / "answers")]
    result = CliRunner().invoke(main, command)
    assert result.exit_code == 0, result.output
    (path,) = (tmp_path / "answers").glob("*.parquet")
    rows = parquet.read_table(path).to_pylist()
    assert [(row["label"], row["model"]) for row in rows] == [(result["label"], result["model"]) for result in expected]


@pytest.mark.parametrize("name", ["small", "large"])
def test_a_cascade_is_broken_where_one_of_its_models_fails_on_its_self_test(
    name: str, cascade: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = open_engine(cascade, EngineSettings(load_options={"threads": 1}), "both", Metrics())
    assert isinstance(engine, CascadeEngine)
    part = engine if name == "small" else engine._large
    try:
        part._worker.num_failures = 9
        engine.check_failures()
        assert not engine.broken
        with monkeypatch.context() as patch:
            patch.setattr(part._tested, "run_encodings", Mock(side_effect=RuntimeError("the GPU is lost")))
            part._worker.num_failures = 9
            engine.check_failures()
            assert engine.broken
        engine.check_failures()
        assert not engine.broken
    finally:
        engine.close()
