"""ModernBERT beyond what all families are tested for: its options, long inputs, its tokenizer."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from bert_models import CheckpointError, ConfigError, load_model, open_checkpoint, save_model
from bert_models.corpus import TextFiles
from bert_models.distillation.layers import student_from_layers
from bert_models.families import FAMILIES
from bert_models.pretraining import InitialModel, PretrainSettings, pretrain
from bert_models.tokenizer_files import read_tokenizer

from ..toy import BATCHES, MASKS, TOLERANCE, inputs, randomize, save_reference
from ..toy_families import CONFIGS, reference
from ..toy_heads import VOCABULARY, difference, save
from ..toy_heads import reference as head_reference
from ..toy_tokenizers import BERT_TOKENS, NASTY, TEXT, assert_same

OPTIONS: dict[str, dict[str, Any]] = {
    "biases": {"attention_bias": True, "mlp_bias": True, "norm_bias": True, "classifier_bias": True},
    "no biases": {"decoder_bias": False},
    "first token": {"classifier_pooling": "cls"},
    "activations": {"hidden_activation": "silu", "classifier_activation": "relu"},
    "layers": {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    "all global": {"layer_types": ["full_attention"] * 3},
    "every second": {"global_attn_every_n_layers": 2},
    "odd window": {"local_attention": 5},
    "bases": {"global_rope_theta": 500.0, "local_rope_theta": 20.0},
    "nested bases": {
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": 77.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 13.0},
        }
    },
    "epsilon": {"norm_eps": 1e-3},
    "sparse": {"sparse_prediction": True},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_act_like_in_transformers(name: str, tmp_path: Path, classifier_checkpoint: Path) -> None:
    """In both directions: their checkpoint in ours, and ours in theirs."""
    theirs = head_reference("modernbert", "text-classification", **OPTIONS[name])
    source = open_checkpoint(save_reference(theirs, tmp_path / "theirs"))
    ours = load_model(source, source.task())
    assert difference(ours, theirs) <= TOLERANCE
    again = save(ours, tmp_path / "ours", classifier_checkpoint)
    assert open_checkpoint(again).config == source.config
    loaded = transformers.AutoModelForSequenceClassification.from_pretrained(again).eval()
    assert difference(ours, loaded) <= TOLERANCE


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("task", ["token-classification", "question-answering", "fill-mask"])
def test_heads_equal_those_of_transformers(task: str, batch: int, mask: str, tmp_path: Path) -> None:
    theirs = head_reference("modernbert", task, max_position_embeddings=128)
    (tmp_path / "tokenizer.json").write_text(toy_tokenizer().to_str())
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    assert difference(load_model(checkpoint, checkpoint.task()), theirs, batch, mask) <= TOLERANCE


def test_sequences_of_many_windows_equal_those_of_transformers(tmp_path: Path) -> None:
    theirs = reference("modernbert", "Model", max_position_embeddings=1024, local_attention=128)
    checkpoint = open_checkpoint(save_reference(theirs, tmp_path))
    ours = load_model(checkpoint, checkpoint.task("sentence-embedding"))
    ids, attention, _ = inputs(2, "left", tokens=700)
    with torch.no_grad():
        found, expected = ours.encoder(ids, attention), theirs(input_ids=ids, attention_mask=attention)[0]
    assert float((found - expected).abs().max()) <= TOLERANCE


def test_config_of_transformers_4_is_read() -> None:
    """As in the published checkpoints: no kinds of layers, and bases of their own."""
    _, config, sizes = CONFIGS["modernbert"]
    values = {**config(**sizes).to_dict(), "global_attn_every_n_layers": 2}
    expected = FAMILIES["modernbert"].parse_config(values, "here")
    del values["layer_types"], values["rope_parameters"]
    found = FAMILIES["modernbert"].parse_config({**values, "global_rope_theta": 9.0, "local_rope_theta": None}, "here")
    assert expected.local_layers == (1, 2)
    assert found.local_layers == (1,)
    assert (found.rope_theta, found.local_rope_theta) == (9.0, 9.0)
    assert (expected.rope_theta, expected.local_rope_theta) == (160_000.0, 10_000.0)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layer_types": ["full_attention"]}, r"layer_types must list 3 layers, found \['full_attention'\]"),
        ({"layer_types": ["full_attention", "chunked_attention", "full_attention"]}, "found 'chunked_attention'"),
        ({"layer_types": None, "global_attn_every_n_layers": 0}, "global_attn_every_n_layers must be .* found 0"),
        ({"local_attention": 1}, "local_attention must be a whole number from 2, found 1"),
        ({"local_attention": None}, "local_attention must be a whole number from 2, found None"),
        ({"rope_parameters": {"rope_theta": 1.0}}, "rope_parameters must be an object of .*, found 'rope_theta'"),
        (
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 4.0}}},
            "rope_parameters.full_attention has rope_type 'yarn': rotations other than the default are not supported",
        ),
        ({"global_rope_theta": "high", "rope_parameters": None}, "global_rope_theta.rope_theta must be a number"),
        ({"rope_scaling": {"factor": 2.0}}, "rope_scaling must be None, found {'factor': 2.0}"),
        ({"classifier_pooling": "max"}, "classifier_pooling must be one of cls, mean, found 'max'"),
        ({"hidden_activation": "swish"}, "activation must be one of .*, found 'swish'"),
        ({"mlp_bias": "no"}, "mlp_bias must be true or false, found 'no'"),
    ],
)
def test_unsupported_options_are_errors(changes: dict[str, Any], message: str) -> None:
    _, config, sizes = CONFIGS["modernbert"]
    with pytest.raises(ConfigError, match=f"config.json: .*{message}"):
        FAMILIES["modernbert"].parse_config({**config(**sizes).to_dict(), **changes}, "config.json")


def test_new_residual_projections_are_scaled_down() -> None:
    config = FAMILIES["modernbert"].preset("tiny", vocab_size=50, pad_token_id=0)
    layer = load_new(config)
    scaled = 0.02 / (2 * config.num_layers) ** 0.5
    assert float(layer.attention.output.weight.detach().std()) == pytest.approx(scaled, rel=0.05)
    assert float(layer.feed_forward.down.weight.detach().std()) == pytest.approx(scaled, rel=0.05)
    assert float(layer.feed_forward.up.weight.detach().std()) == pytest.approx(0.02, rel=0.05)


def load_new(config: Any) -> Any:
    from bert_models import TaskModel
    from bert_runtime.tasks import SentenceEmbedding

    torch.manual_seed(0)
    return TaskModel(config, SentenceEmbedding(dimensions=config.hidden_size)).encoder.layers[0]


def toy_tokenizer(vocab_size: int = VOCABULARY) -> Tokenizer:
    """Return a tokenizer like ModernBERT's: byte-level BPE after NFC, with BERT's special tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet() if vocab_size > 300 else []
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, special_tokens=list(BERT_TOKENS), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT if alphabet else ["a few words"], trainer)
    tokenizer.add_special_tokens([AddedToken("[MASK]", lstrip=True, special=True, normalized=False)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return tokenizer


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    toy_tokenizer(500).save(str(tmp_path / "tokenizer.json"))
    tokens = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), BERT_TOKENS, strict=True))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", **tokens}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "modernbert"}))
    return tmp_path


def test_nasty_strings_encode_like_transformers(tokenizer_folder: Path) -> None:
    assert_same(tokenizer_folder, "modernbert", NASTY)


def test_missing_tokenizer_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"expected a tokenizer in tokenizer\.json, the only form"):
        read_tokenizer(tmp_path, "modernbert")


def test_merged_matrices_are_written_whole(tmp_path: Path, classifier_checkpoint: Path) -> None:
    from safetensors.torch import load_file

    theirs = head_reference("modernbert", "text-classification")
    source = open_checkpoint(save_reference(theirs, tmp_path / "theirs"))
    ours = load_model(source, source.task())
    randomize(ours, seed=3)
    (tmp_path / "ours").mkdir()
    save_model(ours, tmp_path / "ours", tokenizer_from=classifier_checkpoint)
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("theirs", "ours"))
    assert {key: tensor.shape for key, tensor in before.items()} == {key: t.shape for key, t in after.items()}


def test_pretrained_checkpoint_loads_in_transformers_and_makes_a_student(
    tmp_path: Path, toy_vocab: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = {
        "num_layers": 4, "hidden_size": 32, "num_heads": 2, "intermediate_size": 48, "max_positions": 64,
        "local_layers": (1, 2), "sliding_window": 3,
    }  # fmt: skip
    monkeypatch.setitem(FAMILIES, "modernbert", replace(FAMILIES["modernbert"], sizes={"toy": size}))
    (tmp_path / "corpus.txt").write_text("my card is lost at the bank\n\n" * 40)
    (tmp_path / "vocabulary").mkdir()
    read_tokenizer(toy_vocab, "bert").save(str(tmp_path / "vocabulary" / "tokenizer.json"))
    settings = PretrainSettings(
        objective="mlm", steps=4, batch_size=4, lr=1e-3, max_tokens=24, dev_fraction=0.2, eval_every=2, precision="fp32"
    )
    source = InitialModel(family="modernbert", size="toy", tokenizer=tmp_path / "vocabulary")
    corpus = TextFiles([tmp_path / "corpus.txt"])
    report = pretrain(source, corpus, tmp_path / "out", settings, cache=tmp_path / "cache")
    assert report["measured"][-1]["step"] == 4
    theirs, loading = transformers.ModernBertForMaskedLM.from_pretrained(tmp_path / "out", output_loading_info=True)
    assert not loading["missing_keys"]
    assert not loading["unexpected_keys"]
    checkpoint = open_checkpoint(tmp_path / "out")
    ours = load_model(checkpoint, checkpoint.task())
    ids, attention, segments = inputs(3, "random", checkpoint.config.vocab_size)
    with torch.no_grad():
        expected = theirs.eval()(input_ids=ids, attention_mask=attention).logits
        assert float((ours(ids, attention, segments) - expected).abs().max()) <= TOLERANCE
        student = student_from_layers(ours, 3)
        assert student.config.local_layers == (1,)  # the first, third and fourth layer
        assert student(ids, attention, segments).isfinite().all()
