"""The fill-mask head: its mask token, and the output matrix tied to the token embedding."""

import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models

from bert_models import Checkpoint, CheckpointError, load_model, open_checkpoint
from bert_runtime.tasks import (
    FillMask,
    SentenceEmbedding,
)

from .toy import TOLERANCE
from .toy_heads import FILL_MASK, Saved, difference


def with_vocabulary(folder: Path, checkpoint: Checkpoint, *tokens: str) -> Checkpoint:
    """Copy `checkpoint` with a tokenizer of these tokens only."""
    shutil.copytree(checkpoint.path, folder)
    Tokenizer(models.WordLevel({token: i for i, token in enumerate(tokens)}, unk_token=tokens[0])).save(
        str(folder / "tokenizer.json")
    )
    return open_checkpoint(folder)


def test_mask_token_is_read_from_the_vocabulary(saved: Saved, tmp_path: Path) -> None:
    _, source = saved("roberta", "fill-mask")
    checkpoint = with_vocabulary(tmp_path / "copy", source, "<unk>", "<pad>", "a", "<mask>")
    assert checkpoint.task() == FillMask(mask_token="<mask>", mask_token_id=3)


def test_vocabulary_without_mask_token_is_refused(saved: Saved, tmp_path: Path) -> None:
    _, source = saved("bert", "fill-mask")
    checkpoint = with_vocabulary(tmp_path / "copy", source, "[UNK]", "[PAD]", "a")
    with pytest.raises(CheckpointError, match=r"the vocabulary has neither of the mask tokens \[MASK\], <mask>"):
        checkpoint.task()


@pytest.mark.parametrize("family", FILL_MASK)
def test_untied_configuration_is_refused(saved: Saved, family: str, tmp_path: Path) -> None:
    _, checkpoint = saved(family, "fill-mask", tie_word_embeddings=False)
    with pytest.raises(CheckpointError, match="expected tie_word_embeddings to be true, found false"):
        checkpoint.task()
    assert checkpoint.task("sentence-embedding") == SentenceEmbedding(dimensions=24)  # other heads are not affected


@pytest.mark.parametrize(
    ("family", "key"),
    [
        ("bert", "cls.predictions.decoder.weight"),
        ("roberta", "lm_head.decoder.weight"),
        ("distilbert", "vocab_projector.weight"),
        ("albert", "predictions.decoder.weight"),
        ("electra", "generator_lm_head.weight"),
        ("mpnet", "lm_head.decoder.weight"),
        ("modernbert", "decoder.weight"),
        ("nomic_bert", "cls.predictions.decoder.weight"),
        ("gte", "lm_head.decoder.weight"),
    ],
)
def test_stored_output_matrix_must_equal_the_embedding(saved: Saved, family: str, key: str, tmp_path: Path) -> None:
    """Old checkpoints store the tied matrix twice; transformers uses the second one if it differs."""
    theirs, source = saved(family, "fill-mask")
    folder = Path(shutil.copytree(source.path, tmp_path / "copy"))
    tensors = load_file(folder / "model.safetensors")
    embedding = theirs.get_input_embeddings().weight.detach()
    save_file({**tensors, key: embedding.clone()}, folder / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(folder)
    assert difference(load_model(checkpoint, checkpoint.task()), theirs) <= TOLERANCE
    save_file({**tensors, key: embedding + 1}, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(CheckpointError, match=key):
        load_model(checkpoint, checkpoint.task())
