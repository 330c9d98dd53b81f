"""The model card: metadata that a hub can read, inherited from the checkpoint or measured, and never invented."""

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from bert_export import export
from bert_export.model_card import export_command, model_card
from bert_export.source_card import read_source_card
from bert_models import open_checkpoint
from bert_runtime import Manifest


def metadata(card: str) -> dict[str, Any]:
    empty, front_matter, _ = card.split("---\n", 2)
    assert empty == ""
    values = yaml.safe_load(front_matter)
    assert isinstance(values, dict)
    return values


@pytest.fixture
def checkpoint(classifier_checkpoint: Path, tmp_path: Path) -> Path:
    """A checkpoint that a test may change."""
    return Path(shutil.copytree(classifier_checkpoint, tmp_path / "a: 'checkpoint' #1"))


def test_bundle_has_a_card(checkpoint: Path, tmp_path: Path) -> None:
    (checkpoint / "README.md").write_text(
        "---\nlicense: 'apache-2.0'\nlanguage: [en, de]\nbase_model: org/base\ndatasets: [x]\n---\n# Model\n",
        encoding="utf-8",
    )
    dev = tmp_path / "dev.csv"
    dev.write_text("text,label\nhello,greeting\nbye,farewell\n", encoding="utf-8")
    bundle = tmp_path / "bundle"
    manifest = export(checkpoint, bundle, evaluate=dev, precisions=["fp32"])
    assert manifest.extra["model_card"] == "README.md"
    card = (bundle / "README.md").read_text(encoding="utf-8")
    accuracy = manifest.variant("fp32").metrics["accuracy"]
    assert metadata(card) == {
        "language": ["en", "de"],
        "license": "apache-2.0",
        "base_model": "org/base",
        "library_name": "bert-export",
        "tags": ["onnx", "bert-export", "bert", "fp32"],
        "pipeline_tag": "text-classification",
        "model-index": [
            {
                "name": "bundle",
                "results": [
                    {
                        "task": {"type": "text-classification"},
                        "dataset": {"type": "dev.csv", "name": "dev.csv"},
                        "metrics": [{"type": "accuracy", "value": accuracy, "name": "accuracy (fp32)"}],
                    }
                ],
            }
        ],
    }
    command = next(line for line in card.splitlines() if line.startswith("bert-export export"))
    assert shlex.split(command)[2:4] == [checkpoint.name, "bundle"]
    assert "--precision fp32 --evaluate dev.csv --max-drop 1.0" in command
    assert str(tmp_path) not in card
    assert 'model = load("bundle")' in card
    export(checkpoint, bundle, precisions=["fp32"], force=True)  # the card is the bundle's and is replaced with it
    assert "model-index" not in metadata((bundle / "README.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "text",
    [
        "no metadata",
        "---\nlicense: [\n---\n",
        "---\n- a\n---\n",
        "---\nlicense: !!python/object/apply:os.system [ls]\n---\n",
        "---\nlicense: 3\nlanguage: {a: b}\nbase_model: ../etc\n---\n",
        "---\nlicense: " + "[" * 5000 + "\n---\n",
        "---\ndate: 2020-99-99\n---\n",
    ],
)
def test_card_that_cannot_be_read_says_nothing(checkpoint: Path, text: str) -> None:
    (checkpoint / "README.md").write_text(text, encoding="utf-8")
    assert read_source_card(open_checkpoint(checkpoint)) == {}
    (checkpoint / "README.md").write_bytes(b"---\nlicense: \xff\n---\n")
    assert read_source_card(open_checkpoint(checkpoint)) == {}


def test_licence_may_be_in_the_configuration(checkpoint: Path) -> None:
    values = json.loads((checkpoint / "config.json").read_text()) | {"license": "mit", "_name_or_path": "out/run-1"}
    (checkpoint / "config.json").write_text(json.dumps(values))
    assert read_source_card(open_checkpoint(checkpoint)) == {"license": "mit"}


def test_metadata_are_quoted(classifier_bundle: Path) -> None:
    name = "x: [1]\n---\n# y"
    card = model_card(Manifest.read(classifier_bundle), {"license": "no"}, "bert-export export a b", name)
    values = yaml.safe_load(card[4 : card.index("\n---\n\n")])
    assert values["license"] == "no"


def test_command_repeats_the_options() -> None:
    found = export_command(
        "org/name@v1", Path("/tmp/my bundle"), {"text": "sentence"},
        {"bio": False, "special_tokens": False, "candidates": ("a", "b"), "top_k": 3},
        task="fill-mask", target=("cpu", "cuda"), calibrate=Path("/data/texts.txt"), weight_bits=None,
    )  # fmt: skip
    assert found == (
        "bert-export export org/name@v1 'my bundle' --task fill-mask --target cpu --target cuda --calibrate texts.txt "
        "--columns text=sentence --no-bio --no-special-tokens --candidates a,b --top-k 3"
    )
