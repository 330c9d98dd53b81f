"""Prompts in front of texts, and vectors of other precisions: `Model.encode`, `with_options` and the command line."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from bert_export.calibration_texts import CalibrationTexts
from bert_export.cli import main
from bert_models import CheckpointError, open_checkpoint
from bert_models.distillation.run import UnlabelledObjective
from bert_models.training.data import ExampleDataset
from bert_runtime import BundleError, Embedding, InputError, Manifest, Model, SentenceEmbedding, load
from bert_runtime.tasks import Example, TextInput
from bert_runtime.vector_quantization import quantize_embeddings

TEXTS = ["where is my card?", "hello", "I lost my money at the bank"]


@pytest.fixture(scope="module")
def model(prompted_bundle: Path) -> Model:
    return load(prompted_bundle, threads=1)


@pytest.fixture(scope="module")
def plain(embedding_bundle: Path) -> Model:
    """The same model without prompts."""
    return load(embedding_bundle, precision="fp32", threads=1)


def expected(plain: Model, prompt: str) -> list[list[float]]:
    return plain.encode([prompt + text for text in TEXTS]).tolist()


def test_the_prompt_by_default_is_that_of_the_checkpoint(model: Model, plain: Model) -> None:
    assert model.encode(TEXTS).tolist() == expected(plain, "card: ")
    assert [result.to_dict()["embedding"] for result in model(TEXTS)] == expected(plain, "card: ")
    assert [result.to_dict()["embedding"] for result in model.stream(TEXTS)] == expected(plain, "card: ")


def test_training_and_calibration_read_what_the_runtime_reads(model: Model) -> None:
    task, tokenizer = model.task, model.tokenizer
    texts = [TextInput(text) for text in TEXTS]
    wanted = [encoded.windows[0].ids for encoded in model.tokenize(texts)]
    rows = ExampleDataset(task, [Example((text,), 0) for text in texts], tokenizer, UnlabelledObjective(task))
    assert [encoding.ids for encoding in rows.encodings] == wanted
    calibration = CalibrationTexts(inputs=texts, source="x", sha256="", headroom=1.0)
    batches = calibration.batches(task, tokenizer)
    found = [
        ids[mask == 1].tolist()
        for batch in batches
        for ids, mask in zip(batch.input_ids, batch.attention_mask, strict=True)
    ]
    assert sorted(found) == sorted(wanted)


def test_prompts_are_chosen_by_name_or_given(model: Model, plain: Model) -> None:
    assert model.encode(TEXTS, prompt_name="query").tolist() == expected(plain, "question ")
    assert model.encode(TEXTS, prompt="bank ").tolist() == expected(plain, "bank ")
    assert model.encode(TEXTS, prompt="").tolist() == plain.encode(TEXTS).tolist()
    assert plain.encode(TEXTS, prompt="bank ").tolist() == expected(plain, "bank ")
    chosen = model.with_options(prompt="bank ").with_options(prompt_name="query")
    assert chosen.encode(TEXTS).tolist() == expected(plain, "question ")


def test_unknown_prompts_are_refused(model: Model, plain: Model) -> None:
    with pytest.raises(InputError, match="expected a prompt_name of one of query, document, found 'passage'"):
        model.encode(TEXTS, prompt_name="passage")
    with pytest.raises(InputError, match="expected a prompt_name of none, since this model has no prompts, found 'q'"):
        plain.encode(TEXTS, prompt_name="q")
    with pytest.raises(InputError, match="expected prompt to be a text, found 3"):
        plain.encode(TEXTS, prompt=3)  # type: ignore[arg-type]


def test_prompts_are_not_possible_where_pooling_leaves_them_out(embedding_checkpoint: Path, tmp_path: Path) -> None:
    task = SentenceEmbedding(dimensions=32, include_prompt=False, prompts={"query": "question "})
    with pytest.raises(InputError, match=r"prompts are not supported with this model: its pooling leaves out"):
        task.with_options(prompt_name="query")
    folder = Path(shutil.copytree(embedding_checkpoint, tmp_path / "instructor"))
    settings = json.loads((folder / "1_Pooling" / "config.json").read_text())
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({**settings, "include_prompt": False}))
    prompts = {"prompts": {"query": "question ", "none": None}}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    found = open_checkpoint(folder).task()
    assert isinstance(found, SentenceEmbedding)
    assert (found.include_prompt, found.prompts) == (False, {"query": "question ", "none": ""})
    (folder / "config_sentence_transformers.json").write_text(json.dumps({**prompts, "default_prompt_name": "query"}))
    with pytest.raises(CheckpointError, match=r"config_sentence_transformers.json: prompts are not supported with"):
        open_checkpoint(folder).task()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": ["a"]}, "expected prompts to be an object of texts, found"),
        ({"prompts": {"a": 3}}, "expected prompts to be texts by name, found {'a': 3}"),
        ({"prompts": {"a": "b"}, "default_prompt_name": "c"}, "expected a prompt_name of one of a, found 'c'"),
    ],
)
def test_malformed_prompts_are_refused(
    settings: dict[str, object], message: str, prompted_bundle: Path, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(prompted_bundle.parent / "checkpoint", tmp_path / "malformed"))
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=f"config_sentence_transformers.json: {message}"):
        open_checkpoint(folder).task()


def test_the_manifest_keeps_prompts_and_ranges(prompted_bundle: Path, embedding_bundle: Path) -> None:
    task = Manifest.read(prompted_bundle).task
    assert isinstance(task, SentenceEmbedding)
    assert (task.prompts, task.prompt_name) == ({"query": "question ", "document": "card: "}, "document")
    assert np.array(task.ranges).shape == (2, 32)
    settings = Manifest.read(embedding_bundle).task.to_dict()
    assert list(settings) == ["name", "dimensions", "pooling", "normalize", "ranges"]
    with pytest.raises(BundleError, match="expected ranges of two times 32 numbers, found"):
        SentenceEmbedding.from_dict({**settings, "ranges": [[0.5]]})


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"prompts": []}, r"expected prompts to be texts by name, found \(\)"),
        ({"prompts": "x"}, "expected prompts to be texts by name, found 'x'"),
        ({"prompts": None}, "expected prompts to be texts by name, found None"),
        ({"include_prompt": "no"}, "expected include_prompt to be true or false, found 'no'"),
    ],
)
def test_malformed_settings_of_a_manifest_are_refused(setting: dict[str, object], message: str) -> None:
    with pytest.raises(BundleError, match=f"settings of task 'sentence-embedding' are malformed: {message}"):
        SentenceEmbedding.from_dict({"dimensions": 4, **setting})


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_vectors_of_other_precisions(precision: str, plain: Model) -> None:
    """One call, single results and another batch agree: the ranges are the bundle's, not those of the call."""
    task, floats = plain.task, plain.encode(TEXTS)
    assert isinstance(task, SentenceEmbedding)
    assert task.ranges is not None
    found = plain.encode(TEXTS, precision=precision)  # type: ignore[arg-type]
    assert found.tolist() == quantize_embeddings(floats, precision, task.ranges).tolist()
    configured = plain.with_options(embedding_precision=precision)
    assert [result.to_dict()["embedding"] for result in configured(TEXTS)] == found.tolist()
    single = configured(TEXTS[1])
    assert isinstance(single, Embedding)
    assert np.abs(single.vector.astype(int) - found[1].astype(int)).max() <= 1
    assert single.summary().startswith(f"[{single.vector[0]}, ")


def test_8_bit_vectors_are_close_to_float_ones(plain: Model) -> None:
    task = plain.task
    assert isinstance(task, SentenceEmbedding)
    low, high = np.array(task.ranges)
    levels = plain.encode(TEXTS, precision="uint8")
    assert levels / 255 * (high - low) + low == pytest.approx(plain.encode(TEXTS).clip(low, high), abs=0.01)


def test_ranges_of_fewer_dimensions_are_to_be_given(plain: Model) -> None:
    """Truncated vectors are normalized again, so the bundle's ranges do not fit them."""
    with pytest.raises(InputError, match=r"no ranges for int8 vectors of 8 dimensions; export it again with --dimens"):
        plain.encode(TEXTS, dimensions=8, precision="int8")
    ranges = np.stack([np.full(8, -1.0), np.full(8, 1.0)])
    found = plain.encode(TEXTS, dimensions=8, precision="int8", ranges=ranges)
    assert found.tolist() == quantize_embeddings(plain.encode(TEXTS, dimensions=8), "int8", ranges).tolist()
    int8 = plain.with_options(embedding_precision="int8")
    assert int8.encode(TEXTS, dimensions=8, ranges=ranges).tolist() == found.tolist(), "as an int8 bundle has it"
    with pytest.raises(InputError, match="no ranges for int8 vectors of 8 dimensions"):
        int8.encode(TEXTS, dimensions=8)
    assert plain.encode(TEXTS, dimensions=8, precision="ubinary").shape == (3, 1)
    with pytest.raises(InputError, match="expected ranges of two times 8 numbers"):
        plain.encode(TEXTS, dimensions=8, precision="int8", ranges=ranges[:, :5])


def test_fewer_dimensions_of_single_results(plain: Model) -> None:
    results = plain.with_options(dimensions=8)(TEXTS)
    assert [result.to_dict()["embedding"] for result in results] == plain.encode(TEXTS, dimensions=8).tolist()
    with pytest.raises(InputError, match="dimensions must lie in 1 to 32, found 33"):
        plain.with_options(dimensions=33)


def test_command_line(prompted_bundle: Path, plain: Model) -> None:
    options = ["--prompt-name", "query", "--dimensions", "16", "--embedding-precision", "ubinary", "--json"]
    result = CliRunner().invoke(main, ["predict", str(prompted_bundle), *TEXTS, *options])
    assert result.exit_code == 0, result.output
    prompted = [f"question {text}" for text in TEXTS]
    found = [json.loads(line)["embedding"] for line in result.stdout.splitlines()]
    assert found == plain.encode(prompted, dimensions=16, precision="ubinary").tolist()
