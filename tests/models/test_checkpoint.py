"""Opening, loading and saving checkpoints, and errors of invalid ones."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from bert_models import CheckpointError, ConfigError, load_model, open_checkpoint, save_model
from bert_runtime.errors import BertError
from bert_runtime.tasks import SentenceEmbedding, TextClassification, TextInput


@pytest.fixture
def copy(classifier_checkpoint: Path, tmp_path: Path) -> Path:
    """A classifier checkpoint that a test may change."""
    return Path(shutil.copytree(classifier_checkpoint, tmp_path / "checkpoint"))


def edit_json(path: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(path.read_text())
    edit(values)
    path.write_text(json.dumps(values))


def edit_weights(folder: Path, edit: Callable[[dict[str, torch.Tensor]], object]) -> None:
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors")


def load_state(folder: Path) -> dict[str, torch.Tensor]:
    checkpoint = open_checkpoint(folder)
    return load_model(checkpoint, checkpoint.task()).state_dict()


def assert_same_weights(folder: Path, other: Path) -> None:
    found, expected = load_state(folder), load_state(other)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


def test_saved_checkpoint_loads_back_unchanged(classifier_checkpoint: Path, tmp_path: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    save_model(load_model(source, source.task()), tmp_path, tokenizer_from=classifier_checkpoint)
    saved = open_checkpoint(tmp_path)
    assert saved.config == source.config
    assert saved.task() == source.task()
    assert saved.max_tokens == source.max_tokens
    assert_same_weights(tmp_path, classifier_checkpoint)


def test_saved_embedding_settings_load_back(embedding_checkpoint: Path, tmp_path: Path) -> None:
    source = open_checkpoint(embedding_checkpoint)
    task = SentenceEmbedding(dimensions=source.config.hidden_size, pooling="cls", normalize=False)
    save_model(load_model(source, task), tmp_path, tokenizer_from=embedding_checkpoint)
    assert open_checkpoint(tmp_path).task() == task


def test_old_layer_norm_names_are_read(copy: Path, classifier_checkpoint: Path) -> None:
    def rename(tensors: dict[str, torch.Tensor]) -> None:
        for key in [key for key in tensors if "LayerNorm" in key]:
            tensors[key.replace(".weight", ".gamma").replace(".bias", ".beta")] = tensors.pop(key)

    edit_weights(copy, rename)
    assert_same_weights(copy, classifier_checkpoint)


def test_pickled_weights_are_read(copy: Path, classifier_checkpoint: Path) -> None:
    torch.save(load_file(copy / "model.safetensors"), copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    assert_same_weights(copy, classifier_checkpoint)


class _Payload:
    """Runs a command when unpickled."""

    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (self.command,)


def test_pickle_cannot_run_code(copy: Path, tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    torch.save({"weight": _Payload(f"touch {proof}")}, copy / "pytorch_model.bin")
    (copy / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: the weights cannot be read"):
        load_state(copy)
    assert not proof.exists()


def test_shards_are_read_together(copy: Path, classifier_checkpoint: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    shards = {key: f"model-{number % 2}.safetensors" for number, key in enumerate(tensors)}
    for name in set(shards.values()):
        save_file({key: tensor for key, tensor in tensors.items() if shards[key] == name}, copy / name)
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    (copy / "model.safetensors").unlink()
    assert_same_weights(copy, classifier_checkpoint)


def test_shard_outside_the_folder_is_refused(copy: Path) -> None:
    (copy / "model.safetensors").rename(copy.parent / "outside.safetensors")
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../outside.safetensors"}}))
    with pytest.raises(CheckpointError, match="to name files next to it"):
        open_checkpoint(copy)


def test_half_precision_weights_become_float32(copy: Path) -> None:
    edit_weights(copy, lambda tensors: tensors.update({k: t.to(torch.bfloat16) for k, t in tensors.items()}))
    assert {tensor.dtype for tensor in load_state(copy).values()} == {torch.float32}


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "model.", "base_model.model.", "module._orig_mod."])
def test_prefixes_of_wrappers_are_left_out(
    copy: Path, classifier_checkpoint: Path, caplog: pytest.LogCaptureFixture, prefix: str
) -> None:
    tensors = load_file(copy / "model.safetensors")
    save_file({prefix + key: tensor for key, tensor in tensors.items()}, copy / "model.safetensors")
    assert_same_weights(copy, classifier_checkpoint)
    assert f"{copy}: the names of all weights begin with {prefix}, which is left out" in caplog.messages


def test_a_prefix_that_some_weights_lack_is_kept(copy: Path) -> None:
    tensors = load_file(copy / "model.safetensors")
    wrapped = {f"module.{key}": tensor for key, tensor in tensors.items() if key != "classifier.bias"}
    save_file({**wrapped, "classifier.bias": tensors["classifier.bias"]}, copy / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"unexpected: module\.bert\."):
        load_state(copy)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_named(copy: Path, value: float) -> None:
    edit_weights(copy, lambda tensors: tensors["classifier.bias"].fill_(value))
    with pytest.raises(CheckpointError, match=r"NaN or infinity in classifier\.bias; the training run has diverged"):
        load_state(copy)


@pytest.mark.parametrize("is_whole", [True, False])
def test_an_adapter_is_refused(copy: Path, is_whole: bool) -> None:
    """Also next to the weights of its base, which would be exported without it."""
    values = {"peft_type": "LORA", "base_model_name_or_path": "org/base"}
    (copy / "adapter_config.json").write_text(json.dumps(values))
    if not is_whole:
        (copy / "config.json").unlink()
    with pytest.raises(
        CheckpointError, match=r"a LoRA adapter of org/base .*; merge it first, with model\.merge_and_un"
    ):
        open_checkpoint(copy)


def test_one_error_lists_all_wrong_keys(copy: Path) -> None:
    def damage(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["bert.encoder.layer.0.output.dense.bias"]
        del tensors["bert.embeddings.LayerNorm.weight"]
        tensors["bert.encoder.layer.9.output.dense.bias"] = torch.zeros(3)
        tensors["bert.encoder.layer.1.intermediate.dense.bias"] = torch.zeros(5)

    edit_weights(copy, damage)
    with pytest.raises(CheckpointError) as caught:
        load_state(copy)
    message = str(caught.value)
    assert "2 missing" in message
    assert "bert.encoder.layer.0.output.dense.bias" in message
    assert "bert.embeddings.LayerNorm.weight" in message
    assert "1 unexpected: bert.encoder.layer.9.output.dense.bias" in message
    assert "1 mis-shaped: bert.encoder.layer.1.intermediate.dense.bias (expected [" in message
    assert "found [5])" in message


def test_label_count_must_match_the_weights(copy: Path) -> None:
    edit_json(copy / "config.json", lambda c: c.update(id2label={"0": "a", "1": "b"}, label2id={"a": 0, "b": 1}))
    with pytest.raises(CheckpointError, match=r"id2label has 2 labels, and the head in the weights has 3 outputs"):
        load_state(copy)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(model_type="gpt2"), r"expected a model_type of bert, roberta, .*, found 'gpt2'"),
        (
            lambda c: c.update(model_type="xlnet"),
            r"mpnet, .*found 'xlnet'; the nearest of these is mpnet: train a checkpoint of that family",
        ),
        (lambda c: c.pop("hidden_size"), "missing hidden_size"),
        (lambda c: c.update(num_attention_heads=5), "hidden_size must be a multiple of num_heads"),
        (
            lambda c: c.update(hidden_act="swish"),
            "activation must be one of gelu, gelu_new, relu, silu, tanh, found 'swish'",
        ),
        (lambda c: c.update(position_embedding_type="relative_key"), "position_embedding_type must be 'absolute'"),
        (lambda c: c.update(is_decoder=True), "is_decoder must be False, found True"),
        (lambda c: c.update(hidden_dropout_prob=1.5), r"hidden_dropout must lie in \[0, 1\), found 1.5"),
    ],
)
def test_unsupported_configuration_error_names_the_option(
    copy: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit_json(copy / "config.json", edit)
    with pytest.raises((CheckpointError, ConfigError), match=message):
        open_checkpoint(copy)


def test_one_error_lists_all_configuration_problems(copy: Path) -> None:
    edit_json(copy / "config.json", lambda c: c.update(num_attention_heads=5, hidden_act="swish"))
    with pytest.raises(ConfigError, match=r"multiple of num_heads.*activation must be one of"):
        open_checkpoint(copy)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda c: c.update(id2label=None), "expected 'id2label'"),
        (lambda c: c.update(id2label={"0": "a", "2": "b"}), "expected 'id2label'"),
        (lambda c: c.update(id2label={"0": "a", "1": "a"}), "labels must be distinct, found more than once: a"),
        (lambda c: c.update(problem_type="ranking"), "expected a problem_type of single_label_classification"),
        (lambda c: c.update(architectures=["BertForPreTraining"]), "choose one with --task"),
    ],
)
def test_invalid_head_configuration_is_refused(
    copy: Path, edit: Callable[[dict[str, Any]], object], message: str
) -> None:
    edit_json(copy / "config.json", edit)
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(copy).task()


def test_missing_labels_are_the_defaults_of_transformers(copy: Path) -> None:
    edit_json(copy / "config.json", lambda c: c.pop("id2label"))
    source = open_checkpoint(copy)
    task = source.task()
    assert task == TextClassification(labels=("LABEL_0", "LABEL_1"))
    with pytest.raises(CheckpointError, match=r"classifier\.weight"):
        load_model(source, task)  # the weights have three labels
    edit_json(copy / "config.json", lambda c: c.update(architectures=["BertModel"]))
    with pytest.raises(CheckpointError, match=r"expected 'id2label' .* found None.* is fine-tuned first"):
        open_checkpoint(copy).task("text-classification")


def test_folder_that_is_not_a_checkpoint_is_refused(tmp_path: Path, copy: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a checkpoint .* found nothing"):
        open_checkpoint(tmp_path / "absent")
    with pytest.raises(CheckpointError, match=r"config\.json: no such file"):
        open_checkpoint(tmp_path)
    (copy / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json: not a JSON file"):
        open_checkpoint(copy)


def test_damaged_and_missing_weights_are_refused(copy: Path) -> None:
    weights = copy / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: the weights cannot be read"):
        load_state(copy)
    weights.unlink()
    with pytest.raises(CheckpointError, match=r"expected weights in one of model\.safetensors"):
        open_checkpoint(copy)


def test_missing_tokenizer_error_names_the_expected_files(copy: Path) -> None:
    for name in ("tokenizer.json", "vocab.txt"):
        (copy / name).unlink(missing_ok=True)
    with pytest.raises(CheckpointError, match=r"expected a tokenizer in tokenizer\.json or vocab\.txt, found neither"):
        open_checkpoint(copy).tokenizer()


def test_tokenizer_larger_than_the_model_is_refused(copy: Path, classifier_checkpoint: Path) -> None:
    size = open_checkpoint(classifier_checkpoint).tokenizer().get_vocab_size() - 1
    edit_json(copy / "config.json", lambda c: c.update(vocab_size=size))
    with pytest.raises(CheckpointError, match=f"the model only {size}; they do not belong together"):
        open_checkpoint(copy).tokenizer()


def test_max_tokens_is_what_sentence_transformers_reads(copy: Path) -> None:
    positions = open_checkpoint(copy).config.max_positions
    (copy / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 10**30}))
    assert open_checkpoint(copy).max_tokens == positions
    (copy / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 9}))
    assert open_checkpoint(copy).max_tokens == 9
    (copy / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 7}))
    assert open_checkpoint(copy).max_tokens == 9  # without modules.json, nothing reads it
    (copy / "modules.json").write_text("[]")
    for length in (7, 11):  # whatever the tokenizer says
        (copy / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": length}))
        assert open_checkpoint(copy).max_tokens == length
    (copy / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": positions + 1}))
    assert open_checkpoint(copy).max_tokens == positions
    (copy / "sentence_bert_config.json").rename(copy / "sentence_roberta_config.json")
    assert open_checkpoint(copy).max_tokens == positions
    (copy / "sentence_roberta_config.json").write_text(json.dumps({"do_lower_case": True}))
    with pytest.raises(CheckpointError, match=r"sentence_roberta_config\.json: do_lower_case is not supported"):
        open_checkpoint(copy).text_tokenizer(8)


@pytest.mark.parametrize("length", [2, 10_000])
def test_max_tokens_out_of_range_is_refused(classifier_checkpoint: Path, length: int) -> None:
    with pytest.raises(BertError, match=f"expected a maximum length of 3 to .* found {length}"):
        open_checkpoint(classifier_checkpoint).text_tokenizer(length)


def test_texts_are_truncated_like_in_transformers(classifier_checkpoint: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(classifier_checkpoint, tmp_path / "copy"))
    (copy / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "BertTokenizer", "truncation_side": "left"})
    )
    text = "hello there where is my card bye"
    ((found,),) = open_checkpoint(copy).text_tokenizer(5).encode([TextInput(text)])
    theirs = transformers.AutoTokenizer.from_pretrained(copy)
    assert found.ids == theirs(text, truncation=True, max_length=5)["input_ids"]
    assert found.tokens[-2] == "bye"
    (copy / "tokenizer_config.json").write_text(json.dumps({"truncation_side": "both"}))
    with pytest.raises(CheckpointError, match=r"tokenizer_config.json: expected a truncation_side of left or right"):
        open_checkpoint(copy).text_tokenizer(5)


@pytest.mark.parametrize(
    "settings", [{"do_lower_case": False}, {"do_lower_case": True, "strip_accents": False}, {}], ids=str
)
def test_normalizer_uses_tokenizer_config(copy: Path, settings: dict[str, bool]) -> None:
    (copy / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BertTokenizer", **settings}))
    text = "Hello THERE, h\u00e9llo my card"
    theirs = transformers.AutoTokenizer.from_pretrained(copy)
    assert open_checkpoint(copy).tokenizer().encode(text).ids == theirs(text)["input_ids"]


def test_new_head_replaces_labels_only(classifier_checkpoint: Path) -> None:
    source = open_checkpoint(classifier_checkpoint)
    before = load_model(source, source.task()).state_dict()
    after = load_model(source, TextClassification(labels=("x", "y", "z", "w", "v")), new_head=True).state_dict()
    assert after["head.output.weight"].shape[0] == 5
    for name in before:
        if not name.startswith("head.output"):
            assert torch.equal(before[name], after[name]), name


@pytest.mark.pretrained
@pytest.mark.parametrize(
    "settings", [{}, {"do_lower_case": False}, {"strip_accents": False}, {"tokenize_chinese_chars": False}]
)
def test_wordpiece_from_vocabulary_matches_transformers(
    pretrained_minilm: Path, tmp_path: Path, settings: dict[str, Any]
) -> None:
    from transformers import BertTokenizerFast

    shutil.copyfile(pretrained_minilm / "vocab.txt", tmp_path / "vocab.txt")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    shutil.copyfile(pretrained_minilm / "config.json", tmp_path / "config.json")
    (tmp_path / "model.safetensors").write_bytes(b"")
    ours = open_checkpoint(tmp_path).tokenizer()
    theirs = BertTokenizerFast(vocab=str(tmp_path / "vocab.txt"), **settings)
    texts = [
        "Déjà vu in Zürich!",
        "東京 is 1,234 km away",
        "don't [MASK] me",
        "x" * 101,
        "\u200b\x00tab\there",
        "🙂 ok",
    ]
    for text in texts:
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
    pair = ours.encode("a question", "an answer")
    assert np.array_equal(pair.type_ids, theirs("a question", "an answer")["token_type_ids"])


@pytest.mark.parametrize("cased", [True, False])
def test_saved_tokenizer_keeps_its_casing_in_transformers(
    classifier_checkpoint: Path, toy_vocab: Path, tmp_path: Path, cased: bool
) -> None:
    from transformers import AutoTokenizer

    source = open_checkpoint(classifier_checkpoint)
    tokenizer = json.loads((classifier_checkpoint / "tokenizer.json").read_text())
    tokenizer["normalizer"]["lowercase"] = not cased
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "tokenizer.json").write_text(json.dumps(tokenizer))
    (tmp_path / "to").mkdir()
    save_model(load_model(source, source.task()), tmp_path / "to", tokenizer_from=tmp_path / "from")
    ours, theirs = open_checkpoint(tmp_path / "to").tokenizer(), AutoTokenizer.from_pretrained(tmp_path / "to")
    assert ours.encode("The bank").ids == theirs("The bank")["input_ids"]
    assert ("[UNK]" in ours.encode("The bank").tokens) == cased
