"""`bert-export attention`, and `export --attention`."""

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import Result

from bert_runtime import Manifest, load_attention

Run = Callable[..., Result]


def test_keys_that_each_token_attends_to(run: Run, attention_bundle: Path) -> None:
    result = run("attention", attention_bundle, "my card")
    assert (result.exit_code, result.stderr) == (0, "")
    title, header, *lines = result.stdout.splitlines()
    assert (title, header.split()) == ("mean of 8 maps", ["token", "attends", "to"])
    assert [line.split()[0] for line in lines] == ["[CLS]", "my", "card", "[SEP]"]
    means = load_attention(attention_bundle)("my card").probabilities.mean(axis=(0, 1))
    shown = [[float(number) for number in re.findall(r"\d\.\d\d", line)] for line in lines]
    assert np.abs(np.array(shown) - np.sort(means)[:, :0:-1]).max() <= 0.0051
    one = run("attention", attention_bundle, "my card", "--layer", 1, "--head", 0)
    assert one.stdout.startswith("layer 1, head 0\n")


def test_json_has_the_numbers_of_a_pair(run: Run, attention_bundle: Path) -> None:
    result = run("attention", attention_bundle, "my card", "--pair", "is lost", "--head", 2, "--json")
    values = json.loads(result.stdout)
    assert values == load_attention(attention_bundle)(("my card", "is lost")).select(head=2).to_dict()
    assert np.array(values["probabilities"]).shape == (2, 1, 7, 7)


@pytest.mark.parametrize("suffix", ["png", "svg"])
def test_plot(run: Run, attention_bundle: Path, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"attention.{suffix}"
    result = run("attention", attention_bundle, "my card", "--layer", 0, "--plot", path)
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", f"wrote {path}\n")
    assert path.stat().st_size > 1000
    both = run("attention", attention_bundle, "my card", "--layer", 0, "--plot", path, "--json")
    assert json.loads(both.stdout)["layers"] == [0]


def test_truncation_is_named(run: Run, attention_bundle: Path) -> None:
    result = run("attention", attention_bundle, "my card is lost", "--max-tokens", 4, "--json")
    assert result.stderr == "the text has more tokens than the 4 that were read; see --max-tokens\n"
    assert json.loads(result.stdout)["tokens"] == ["[CLS]", "my", "card", "[SEP]"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--layer", 2], "expected a layer of 0 to 1, found 2"),
        (["--head", 4], "expected a head of 0 to 3, found 4"),
        (["--max-tokens", 65], "max_tokens must lie in 1 to 64, found 65"),
        (["--plot", "a.gif"], "a.gif: expected a picture that ends in .png, .svg, .pdf"),
        (
            ["--plot", "absent/a.png", "--layer", 9],
            "absent/a.png: expected a folder absent to write into, found none; make it first",
        ),
    ],
)
def test_errors(
    run: Run,
    attention_bundle: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: list[object],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("attention", attention_bundle, "my card", *options)
    assert (result.exit_code, result.stdout, result.stderr) == (1, "", f"Error: {message}\n")
    assert not [*tmp_path.iterdir()]


def test_a_bundle_without_the_graph_says_how_to_get_it(run: Run, classifier_bundle: Path) -> None:
    result = run("attention", classifier_bundle, "my card")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f"Error: {classifier_bundle}: expected a bundle with an attention graph, found none; export the checkpoint "
        f"again with: bert-export export CHECKPOINT {classifier_bundle} --attention --force\n"
    )


def test_export_with_attention(run: Run, classifier_checkpoint: Path, tmp_path: Path) -> None:
    result = run("export", classifier_checkpoint, tmp_path / "bundle", "--precision", "fp32", "--attention")
    assert result.exit_code == 0
    assert "comparing attention with PyTorch under every kind of padding" in result.stderr
    assert "model.attention.onnx" in {path.name for path in (tmp_path / "bundle").iterdir()}
    assert Manifest.read(tmp_path / "bundle").attention is not None
    assert run("verify", tmp_path / "bundle").exit_code == 0
