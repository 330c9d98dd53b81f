"""NomicBERT and GTE as they were published, with code of their own, and as transformers has them in memory."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from bert_models import CheckpointError, ConfigError, EncoderConfig, load_model, open_checkpoint, save_model

from ..toy import MASKS, TOLERANCE, inputs, save_reference
from ..toy_families import reference

NOMIC = {
    "model_type": "nomic_bert", "architectures": ["NomicBertModel"],
    "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
    "vocab_size": 97, "pad_vocab_size_multiple": 101, "type_vocab_size": 2, "n_embd": 24, "n_layer": 3, "n_head": 4,
    "n_inner": 37, "n_positions": 96, "max_trained_positions": 48, "activation_function": "swiglu", "causal": False,
    "prenorm": False, "parallel_block": False, "use_rms_norm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False,
    "mlp_fc2_bias": False, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "rotary_emb_interleaved": False,
    "rotary_emb_scale_base": None, "rotary_scaling_factor": None, "layer_norm_epsilon": 1e-12, "resid_pdrop": 0.0,
    "attn_pdrop": 0.0, "embd_pdrop": 0.1, "initializer_range": 0.02, "use_flash_attn": True, "fused_bias_fc": True,
}  # fmt: skip
"""Keys of a published NomicBERT, with toy sizes."""

NEW = {
    "model_type": "new", "architectures": ["NewModel"],
    "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
    "vocab_size": 101, "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 37,
    "max_position_embeddings": 48, "type_vocab_size": 2, "position_embedding_type": "rope", "rope_theta": 500000,
    "rope_scaling": {"factor": 2.0, "type": "ntk"}, "pack_qkv": True, "unpad_inputs": False, "hidden_act": "gelu",
    "layer_norm_type": "layer_norm", "layer_norm_eps": 1e-12, "logn_attention_scale": False, "hidden_dropout_prob": 0.1,
    "logn_attention_clip1": False, "use_memory_efficient_attention": False, "attention_probs_dropout_prob": 0.0,
}  # fmt: skip
"""Keys of a published GTE, with toy sizes."""

NTK = {"rope_type": "linear", "rope_theta": 1_000_000.0, "factor": 2.0 ** (2 / 6)}
"""The scaling of `NEW`, in the words of transformers."""


def published(folder: Path, values: dict[str, Any], theirs: Any, rename: Callable[[str], str] = str) -> Path:
    """Save a model of transformers with a `config.json` and tensor names as published."""
    save_reference(theirs, folder)
    save_file({rename(key): tensor for key, tensor in load_file(folder / "model.safetensors").items()},
              folder / "model.safetensors")  # fmt: skip
    (folder / "config.json").write_text(json.dumps(values))
    return folder


def assert_same_hidden_states(folder: Path, theirs: Any, mask: str = "random", tokens: int = 19) -> EncoderConfig:
    checkpoint = open_checkpoint(folder)
    ours = load_model(checkpoint, checkpoint.task("sentence-embedding"))
    ids, attention, segments = inputs(3, mask, tokens=tokens)
    with torch.no_grad():
        found = ours.encoder(ids, attention, segments)
        expected = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).last_hidden_state
    assert float((found - expected).abs().max()) <= TOLERANCE
    return checkpoint.config


@pytest.mark.parametrize("mask", MASKS)
def test_published_nomic_bert(tmp_path: Path, mask: str) -> None:
    theirs = reference("nomic_bert", "Model")
    config = assert_same_hidden_states(published(tmp_path, NOMIC, theirs), theirs, mask)
    assert (config.max_tokens, config.vocab_size, config.embedding_dropout) == (96, 101, 0.1)


@pytest.mark.parametrize("mask", MASKS)
def test_published_gte(tmp_path: Path, mask: str) -> None:
    theirs = reference("gte", "Model", rope_parameters=NTK)
    config = assert_same_hidden_states(published(tmp_path, NEW, theirs), theirs, mask)
    assert (config.family, config.max_tokens) == ("gte", 48)


def test_gte_with_keys_of_both_kinds(tmp_path: Path) -> None:
    """As Snowflake's `arctic-embed` of version 2."""
    theirs = reference("gte", "Model", type_vocab_size=1)
    values = {**NEW, "model_type": "gte", "rope_theta": 160_000, "rope_scaling": None, "type_vocab_size": 1}
    folder = published(tmp_path, values, theirs)
    ids, attention, _ = inputs(3, "random")
    ours = load_model(open_checkpoint(folder), open_checkpoint(folder).task("sentence-embedding"))
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=attention).last_hidden_state
        assert float((ours.encoder(ids, attention) - expected).abs().max()) <= TOLERANCE


@pytest.mark.parametrize(("family", "values", "prefix"), [("nomic_bert", NOMIC, "bert."), ("gte", NEW, "new.")])
def test_prefix_of_a_published_model_with_a_head(
    tmp_path: Path, family: str, values: dict[str, Any], prefix: str
) -> None:
    theirs = reference(
        family, "ForSequenceClassification", num_labels=3, **({"rope_parameters": NTK} if family == "gte" else {})
    )
    name = {"gte": "NewForSequenceClassification"}.get(family, "NomicBertForSequenceClassification")
    values = {**values, "architectures": [name], "id2label": {str(i): f"l{i}" for i in range(3)}}
    ours_prefix = family.removesuffix("_bert") + ("_bert." if family == "nomic_bert" else ".")
    checkpoint = open_checkpoint(published(tmp_path, values, theirs, lambda key: key.replace(ours_prefix, prefix)))
    ours = load_model(checkpoint, checkpoint.task())
    ids, attention, segments = inputs(3, "random")
    with torch.no_grad():
        expected = theirs(input_ids=ids, attention_mask=attention, token_type_ids=segments).logits
        assert float((ours(ids, attention, segments) - expected).abs().max()) <= TOLERANCE


def test_published_nomic_bert_with_the_decoder_bias_of_its_code(tmp_path: Path) -> None:
    theirs = reference("nomic_bert", "ForMaskedLM")
    values = {**NOMIC, "architectures": ["NomicBertForPreTraining"]}

    def rename(key: str) -> str:
        key = key.replace("nomic_bert.", "bert.")
        return {"cls.predictions.bias": "cls.predictions.decoder.bias"}.get(key, key)

    checkpoint = open_checkpoint(published(tmp_path, values, theirs, rename))
    assert checkpoint.was_trained_for("fill-mask")
    keys = checkpoint.family.canonical_weights(load_file(tmp_path / "model.safetensors"), values)
    assert torch.equal(keys["cls.predictions.bias"], theirs.cls.predictions.bias)


def state_in_memory(theirs: Any) -> dict[str, Tensor]:
    return {key: tensor.clone() for key, tensor in theirs.state_dict().items()}


@pytest.mark.parametrize("family", ["nomic_bert", "gte"])
def test_names_that_transformers_has_in_memory(tmp_path: Path, family: str) -> None:
    theirs = reference(family, "Model")
    save_reference(theirs, tmp_path)
    save_file(state_in_memory(theirs), tmp_path / "model.safetensors")
    assert "layers.0.self_attn.q_proj.weight" in load_file(tmp_path / "model.safetensors")
    assert_same_hidden_states(tmp_path, theirs)


def test_gte_without_packed_projections(tmp_path: Path) -> None:
    theirs = reference("gte", "Model", rope_parameters=NTK)
    folder = published(tmp_path, {**NEW, "pack_qkv": False}, theirs)
    tensors = load_file(folder / "model.safetensors")
    for key in [key for key in tensors if "qkv_proj" in key]:
        for name, part in zip("qkv", tensors.pop(key).chunk(3), strict=True):
            tensors[key.replace("qkv_proj", f"{name}_proj")] = part.clone()
    save_file(tensors, folder / "model.safetensors")
    assert_same_hidden_states(folder, theirs)


@pytest.mark.parametrize("tokens", [8, 20, 21, 40])
@pytest.mark.parametrize("family", ["nomic_bert", "gte"])
def test_dynamic_scaling_equals_that_of_transformers(tmp_path: Path, family: str, tokens: int) -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2.0}
    theirs = reference(family, "Model", max_position_embeddings=20, rope_parameters=parameters)
    config = assert_same_hidden_states(save_reference(theirs, tmp_path), theirs, tokens=tokens)
    assert config.max_tokens == 40


def test_published_nomic_bert_with_dynamic_scaling(tmp_path: Path) -> None:
    parameters = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 2}
    theirs = reference("nomic_bert", "Model", max_position_embeddings=48, rope_parameters=parameters)
    values = {**NOMIC, "rotary_scaling_factor": 2}
    config = assert_same_hidden_states(published(tmp_path, values, theirs), theirs, tokens=90)
    assert config.max_tokens == 96


@pytest.mark.parametrize(
    ("family", "parameters"),
    [("gte", NTK), ("nomic_bert", {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 3.0})],
)
def test_scaling_survives_saving(
    tmp_path: Path, family: str, parameters: dict[str, Any], embedding_checkpoint: Path
) -> None:
    theirs = reference(family, "Model", rope_parameters=parameters)
    source = open_checkpoint(save_reference(theirs, tmp_path / "a"))
    (tmp_path / "b").mkdir()
    save_model(
        load_model(source, source.task("sentence-embedding")), tmp_path / "b", tokenizer_from=embedding_checkpoint
    )
    assert open_checkpoint(tmp_path / "b").config == source.config
    again = type(theirs).from_pretrained(tmp_path / "b").eval()
    assert_same_hidden_states(tmp_path / "a", again, tokens=48 if family == "gte" else 60)


@pytest.mark.parametrize(
    ("values", "edit", "message"),
    [
        (NOMIC, {"num_experts": 8}, "num_experts must be 0, found 8: this variant of nomic_bert is not supported"),
        (NOMIC, {"activation_function": "gelu"}, "activation_function must be 'swiglu', found 'gelu'"),
        (NOMIC, {"prenorm": True}, "prenorm must be False, found True"),
        (NOMIC, {"n_embd": None}, "missing hidden_size"),
        (NOMIC, {"rotary_scaling_factor": "2"}, "factor of rope_parameters must be a positive number, found '2'"),
        (NOMIC, {"rope_parameters": "x"}, "rope_parameters must be an object, found 'x'"),
        (NOMIC, {"head_dim": 8}, "head_dim must be hidden_size / num_attention_heads, found 8"),
        (NEW, {"position_embedding_type": "absolute"}, "position_embedding_type must be 'rope', found 'absolute'"),
        (NEW, {"layer_norm_type": "rms_norm"}, "layer_norm_type must be 'layer_norm', found 'rms_norm'"),
        (NEW, {"rope_scaling": {"type": "yarn", "factor": 2}}, "a rope_type of default, linear, dynamic, ntk"),
        (NEW, {"rope_scaling": {"type": "ntk", "factor": 2, "mixed_b": 1}}, "without mixed_b, found"),
        (NEW, {"rope_scaling": {"type": "ntk"}}, "factor of rope_scaling must be a positive number, found None"),
        (NEW, {"rope_parameters": {"partial_rotary_factor": 0.5}}, "must rotate whole heads"),
        (NEW, {"rope_theta": -1}, "rope_theta must be a positive number, found -1"),
    ],
)  # fmt: skip
def test_unsupported_variant_error_names_the_key(
    tmp_path: Path, values: dict[str, Any], edit: dict[str, Any], message: str
) -> None:
    folder = published(tmp_path, {**values, **edit}, reference("gte", "Model"))
    with pytest.raises((ConfigError, CheckpointError), match=message) as error:
        open_checkpoint(folder)
    assert "config.json" in str(error.value)
