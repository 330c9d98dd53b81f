"""Attention probabilities of texts: what they belong to, what is truncated, and the errors of other bundles."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from bert_export.attention_graph import reference_attention
from bert_models import load_model, open_checkpoint
from bert_runtime import (
    AttentionModel,
    BundleError,
    InputError,
    load,
    load_attention,
    verify,
)
from bert_runtime.bundle.digest import manifest_digest
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.inputs import as_text_input
from bert_runtime.tokenization import pad

CopyBundle = Callable[..., Path]


@pytest.fixture(scope="module")
def model(attention_bundle: Path) -> AttentionModel:
    return load_attention(attention_bundle, threads=1)


def test_text(model: AttentionModel) -> None:
    text = "Hello, my cardx?"
    attention = model(text)
    assert attention.tokens == ("[CLS]", "hello", ",", "my", "card", "##x", "?", "[SEP]")
    assert attention.words == attention.tokens
    spans = [text[start:end] for start, end in attention.offsets[1:-1]]
    assert spans == ["Hello", ",", "my", "card", "x", "?"]
    assert attention.offsets[0] == attention.offsets[-1] == (0, 0)
    assert attention.sequence_ids == (None, *[0] * 6, None)
    assert (attention.layers, attention.heads, attention.truncated) == ((0, 1), (0, 1, 2, 3), False)
    assert attention.probabilities.shape == (2, 4, 8, 8)
    assert attention.probabilities.dtype == np.float32
    assert np.abs(attention.probabilities.sum(axis=-1) - 1).max() <= 1e-6
    assert repr(model) == "AttentionModel(2 layers of 4 heads, 1 threads)"


def test_probabilities_are_those_of_the_checkpoint(
    model: AttentionModel, attention_bundle: Path, classifier_checkpoint: Path
) -> None:
    source = open_checkpoint(classifier_checkpoint)
    torch_model = load_model(source, source.task()).eval()
    for value in ("where is my card?", ("my card", "is lost")):
        found = model(value)
        encoding = load(attention_bundle).tokenizer.encode([as_text_input(value)])[0][0]
        expected = np.concatenate(reference_attention(torch_model, pad([encoding], 0)))
        assert np.abs(found.probabilities - expected).max() <= 1e-5


def test_pairs_and_named_inputs(model: AttentionModel) -> None:
    attention = model(("my card", "is lost"))
    assert attention.tokens == ("[CLS]", "my", "card", "[SEP]", "is", "lost", "[SEP]")
    assert attention.sequence_ids == (None, 0, 0, None, 1, 1, None)
    assert attention.offsets == ((0, 0), (0, 2), (3, 7), (0, 0), (0, 2), (3, 7), (0, 0))
    for same in (
        model(text="my card", text_pair="is lost"),
        model(question="my card", context="is lost"),
        model({"text": "my card", "text_pair": "is lost"}),
    ):
        assert np.array_equal(same.probabilities, attention.probabilities)


def test_empty_text(model: AttentionModel) -> None:
    assert model("").tokens == ("[CLS]", "[SEP]")


@pytest.mark.parametrize("value", [None, 3, ["my card"], b"my card", ("a", "b", "c")])
def test_other_inputs_are_refused(model: AttentionModel, value: Any) -> None:
    with pytest.raises(InputError, match="expected a text, a tuple of two texts"):
        model(value)


def test_selection(model: AttentionModel) -> None:
    attention = model("my card")
    one = attention.select(1, 2)
    assert (one.layers, one.heads, one.tokens) == ((1,), (2,), attention.tokens)
    assert np.array_equal(one.probabilities, attention.probabilities[1:, 2:3])
    assert attention.select(layer=0).probabilities.shape == (1, 4, 4, 4)
    assert attention.select(head=3).heads == (3,)
    with pytest.raises(InputError, match="expected a layer of 0 to 1, found 2"):
        attention.select(layer=2)
    with pytest.raises(InputError, match="expected a head of 0 to 3, found -1"):
        attention.select(head=-1)


def test_json(model: AttentionModel) -> None:
    attention = model("my card")
    values = json.loads(json.dumps(attention.select(head=0).to_dict()))
    probabilities = values.pop("probabilities")
    assert values == {
        "tokens": ["[CLS]", "my", "card", "[SEP]"],
        "words": ["[CLS]", "my", "card", "[SEP]"],
        "offsets": [[0, 0], [0, 2], [3, 7], [0, 0]],
        "sequence_ids": [None, 0, 0, None],
        "layers": [0, 1],
        "heads": [0],
    }
    assert np.abs(np.array(probabilities) - attention.probabilities[:, :1]).max() <= 5.1e-7
    assert max(len(str(number)) for number in np.ravel(probabilities)) <= 8


def test_long_texts_are_truncated(attention_bundle: Path, model: AttentionModel) -> None:
    assert model.max_tokens == 64
    attention = model("card " * 10_000)
    assert (len(attention.tokens), attention.truncated) == (64, True)
    assert attention.to_dict()["truncated"] is True
    short = load_attention(attention_bundle, max_tokens=6, threads=1)
    assert short("my card is lost again").tokens == ("[CLS]", "my", "card", "is", "lost", "[SEP]")
    for max_tokens in (0, 65):
        with pytest.raises(InputError, match=f"max_tokens must lie in 1 to 64, found {max_tokens}"):
            load_attention(attention_bundle, max_tokens=max_tokens)


def test_the_tokenizers_batch_call_keeps_tokens_and_offsets(
    model: AttentionModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = model(("my card", "is lost"))
    monkeypatch.setattr("bert_runtime.tokenization.text_tokenizer._BATCH_CALL_CHARACTERS", 4)  # as for a long text
    found = model(("my card", "is lost"))
    assert found.tokens == expected.tokens
    np.testing.assert_array_equal(found.offsets, expected.offsets)


def with_tokenizer(bundle: Path, change: Callable[[Path], object], folder: Path) -> Path:
    """Copy a bundle, change its tokenizer's file, and record the file's new hash."""
    copied = Path(shutil.copytree(bundle, folder / "bundle"))
    change(copied / "tokenizer.json")
    record_file(copied, lambda manifest: manifest["tokenizer"])
    return copied


def record_file(bundle: Path, part: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Record size and hash of a changed file in the manifest."""
    manifest = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    asset = part(manifest)
    path = bundle / asset["file"]
    asset |= {"size_bytes": path.stat().st_size, "sha256": sha256_file(path)}
    manifest["manifest_sha256"] = manifest_digest(manifest)
    (bundle / "bundle.json").write_text(json.dumps(manifest), encoding="utf-8")


def test_offsets_are_those_of_the_text_where_its_start_is_dropped(attention_bundle: Path, tmp_path: Path) -> None:
    def truncate_left(path: Path) -> None:
        values = json.loads(path.read_text(encoding="utf-8"))
        values["truncation"]["direction"] = "Left"
        path.write_text(json.dumps(values), encoding="utf-8")

    bundle = with_tokenizer(attention_bundle, truncate_left, tmp_path)
    text = "hello " * 2000 + "where is my card"
    attention = load_attention(bundle, max_tokens=6, threads=1)(text)
    assert [text[start:end] for start, end in attention.offsets[1:-1]] == ["where", "is", "my", "card"]
    assert attention.offsets[-2] == (len(text) - 4, len(text))
    text = "!" * 2000  # starts with the part that is read
    attention = load_attention(bundle, max_tokens=6, threads=1)(text)
    assert attention.offsets[-2] == (len(text) - 1, len(text))


def test_byte_level_tokens_read_as_words(attention_bundle: Path, tmp_path: Path) -> None:
    def make_byte_level(path: Path) -> None:
        tokens = ("[PAD]", "[UNK]", "Ġ", "m", "y", "Ġm", "Ġmy", "Ã", "©")
        vocab = {token: index for index, token in enumerate(tokens)}
        tokenizer = Tokenizer(models.BPE(vocab, [("Ġ", "m"), ("Ġm", "y")]))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        tokenizer.decoder = decoders.ByteLevel()
        tokenizer.save(str(path))

    bundle = with_tokenizer(attention_bundle, make_byte_level, tmp_path)
    attention = load_attention(bundle, threads=1)("my é")
    assert attention.tokens == ("Ġmy", "Ġ", "Ã", "©")
    assert attention.words == ("my", "Ġ", "Ã", "©")


def test_threads_share_a_model(model: AttentionModel) -> None:
    texts = [f"my card {number}" for number in range(40)]
    expected = [model(text).probabilities for text in texts]
    with ThreadPoolExecutor(4) as pool:
        found = [attention.probabilities for attention in pool.map(model, texts)]
    assert all(map(np.array_equal, found, expected))


def test_a_bundle_without_the_graph_says_how_to_get_it(classifier_bundle: Path) -> None:
    with pytest.raises(
        BundleError, match=r"classifier: expected a bundle with an attention graph, found none; .*export CHECKPOINT .* "
        "--attention --force"
    ):  # fmt: skip
        load_attention(classifier_bundle)


def test_verify_checks_file_and_output(attention_bundle: Path) -> None:
    checks = {check.name: check for check in verify(attention_bundle)}
    assert all(check.passed for check in checks.values())
    assert checks["model.attention.onnx"].detail.endswith("sha256 as recorded")
    assert checks["self-test attention"].detail.endswith("; 2 layers of 4 heads")


def attention_file(manifest: dict[str, Any]) -> dict[str, Any]:
    file: dict[str, Any] = manifest["attention"]["model"]
    return file


def change_graph(bundle: Path, change: Callable[[onnx.ModelProto], object]) -> None:
    """Change the attention graph, and record its new hash as someone who hides a change would."""
    path = bundle / "model.attention.onnx"
    graph = onnx.load(path, load_external_data=False)
    change(graph)
    path.write_bytes(graph.SerializeToString())
    record_file(bundle, attention_file)


def test_a_changed_file_is_refused(attention_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(attention_bundle, tmp_path / "bundle"))
    path = bundle / "model.attention.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    with pytest.raises(BundleError, match=r"model\.attention\.onnx: expected sha256"):
        load_attention(bundle)
    path.unlink()
    with pytest.raises(BundleError, match=r"model\.attention\.onnx: .* missing"):
        load_attention(bundle)
    assert load(bundle)("my card").to_dict() == load(attention_bundle)("my card").to_dict()


def test_another_output_fails_verification(attention_bundle: Path, tmp_path: Path) -> None:
    def negate(graph: onnx.ModelProto) -> None:
        (last,) = (node for node in graph.graph.node if "logits" in node.output)
        last.output[0] = "positive"
        graph.graph.node.append(helper.make_node("Neg", ["positive"], ["logits"]))

    bundle = Path(shutil.copytree(attention_bundle, tmp_path / "bundle"))
    change_graph(bundle, negate)
    failed = {check.name: check.detail for check in verify(bundle) if not check.passed}
    assert failed.keys() == {"self-test attention"}
    assert "max abs difference" in failed["self-test attention"]


def test_a_graph_without_an_output_is_refused(attention_bundle: Path, tmp_path: Path) -> None:
    bundle = Path(shutil.copytree(attention_bundle, tmp_path / "bundle"))
    change_graph(bundle, lambda graph: graph.graph.output.pop())
    with pytest.raises(BundleError, match=r"expected an output 'attention\.1' of the shape .* found \[\]"):
        load_attention(bundle)
    assert "attention.1" in next(check.detail for check in verify(bundle) if check.name == "self-test attention")


def test_a_graph_that_reads_other_files_is_refused(attention_bundle: Path, copy_bundle: CopyBundle) -> None:
    bundle = copy_bundle(attention_bundle, lambda manifest: manifest["attention"].update(external_data=None))
    with pytest.raises(BundleError, match=r"reads weights from 'model\.fp32\.onnx\.data', .* no external data for att"):
        load_attention(bundle)


PRIVATE_MEMORY = """
import re, sys
from pathlib import Path
from bert_runtime import load, load_attention

def private_kb():
    return int(re.search(r"Private_Dirty: +(\\d+)", Path("/proc/self/smaps_rollup").read_text())[1])

load(sys.argv[1], precision="fp32", threads=1, inter_threads=1)("hello")
before = private_kb()
load_attention(sys.argv[1], threads=1)("hello")
print(private_kb() - before)
"""


@pytest.mark.slow
@pytest.mark.pretrained
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's account of private memory")
def test_the_weights_are_not_copied_in_memory(pretrained_minilm: Path, tmp_path: Path) -> None:
    from bert_export import export

    manifest = export(pretrained_minilm, tmp_path / "bundle", precisions=["fp32"], attention=True)
    command = [sys.executable, "-c", PRIVATE_MEMORY, str(tmp_path / "bundle")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert manifest.attention is not None
    assert manifest.attention.external_data is not None
    assert int(done.stdout) * 1024 < manifest.attention.external_data.size_bytes / 3
