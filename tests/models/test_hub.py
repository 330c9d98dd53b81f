"""Checkpoints by hub id, from a server on loopback that implements the hub's file interface."""

import shutil
import socket
import sys
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from huggingface_hub import constants

from bert_bench.checkpoints import check_checkpoint, find_checkpoint
from bert_export.cli import main
from bert_models import CheckpointError, load_model, open_checkpoint
from bert_models.checkpoint_folder import ADAPTER_CONFIG
from bert_models.hub import CHECKPOINT_FILES, PICKLE_FILES, local_checkpoint
from bert_models.sentence_transformers import SETTINGS_NAMES
from bert_models.tokenizer_files import TOKENIZER_FILES
from bert_models.training import TrainSettings, fine_tune
from bert_models.weights import WEIGHT_FILES
from bert_runtime import Manifest
from bert_runtime.errors import MissingExtraError

from ..hub_server import Hub, set_endpoint

ID = "toys/classifier"


@pytest.fixture
def hub(hub: Hub, classifier_checkpoint: Path) -> Hub:
    """A running hub with the toy classifier."""
    hub.add(ID, classifier_checkpoint)
    return hub


def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_hub_model_equals_its_folder(hub: Hub, classifier_checkpoint: Path) -> None:
    ours, theirs = open_checkpoint(ID), open_checkpoint(classifier_checkpoint)
    assert (ours.name, ours.revision) == (ID, hub.commit(ID))
    assert (theirs.name, theirs.revision) == (str(classifier_checkpoint), None)
    assert ours.sha256() == theirs.sha256()
    assert ours.tokenizer().to_str() == theirs.tokenizer().to_str()
    models = [load_model(checkpoint, checkpoint.task()) for checkpoint in (ours, theirs)]
    assert all(map(torch.equal, *(model.state_dict().values() for model in models)))


def test_only_needed_files_are_downloaded(hub: Hub, classifier_checkpoint: Path) -> None:
    folder = local_checkpoint(ID)
    expected = {"README.md", *(path.name for path in classifier_checkpoint.iterdir())}  # the licence is in the card
    assert hub.requested_files() == expected
    assert {path.name for path in folder.iterdir()} == expected


def test_download_patterns_cover_every_file_that_is_read() -> None:
    others = {"config.json", ADAPTER_CONFIG, "modules.json", *SETTINGS_NAMES, "config_sentence_transformers.json"}
    assert {*WEIGHT_FILES, *TOKENIZER_FILES, *others} <= {*CHECKPOINT_FILES, *PICKLE_FILES}


def test_sentence_transformers_model_is_downloaded_completely(hub: Hub, embedding_checkpoint: Path) -> None:
    hub.add("toys/embedding", embedding_checkpoint)
    assert open_checkpoint("toys/embedding").task() == open_checkpoint(embedding_checkpoint).task()


def test_pickled_weights_are_downloaded_only_without_safetensors(
    hub: Hub, classifier_checkpoint: Path, tmp_path: Path
) -> None:
    both = Path(shutil.copytree(classifier_checkpoint, tmp_path / "both"))
    (both / "pytorch_model.bin").write_bytes(b"an older copy")
    hub.add("toys/both", both)
    local_checkpoint("toys/both")
    assert "pytorch_model.bin" not in hub.requested_files()

    (both / "model.safetensors").unlink()
    hub.add("toys/pickled", both)
    folder = local_checkpoint("toys/pickled")
    assert (folder / "pytorch_model.bin").read_bytes() == b"an older copy"


def test_cached_model_is_not_downloaded_again(hub: Hub) -> None:
    first = local_checkpoint(ID)
    hub.requested_files()
    assert local_checkpoint(ID) == first
    assert not hub.requested_files()


def test_offline_mode_uses_the_cache_without_a_warning(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = local_checkpoint(ID)
    hub.log.clear()
    _offline(monkeypatch)
    assert local_checkpoint(ID) == first
    assert not hub.log
    assert not caplog.records


def test_unreachable_hub_falls_back_to_the_cache_with_a_warning(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = local_checkpoint(ID)
    set_endpoint(_closed_port(), monkeypatch)
    assert local_checkpoint(ID) == first
    assert f"using commit {hub.commit(ID)} from the cache" in caplog.text


def _closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_revision_may_be_a_branch_tag_or_commit(hub: Hub, embedding_checkpoint: Path) -> None:
    for revision in ("v2", "refs/pr/1"):
        hub.add(ID, embedding_checkpoint, revision)
        commit = hub.commit(ID, revision)
        for name in (f"{ID}@{revision}", f"{ID}@{commit}"):
            opened = open_checkpoint(name)
            assert (opened.name, opened.revision) == (name, commit)
            assert opened.path.name == commit
    assert open_checkpoint(ID).revision == hub.commit(ID)


def test_moved_branch_is_downloaded_again(
    hub: Hub, embedding_checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = local_checkpoint(ID)
    hub.add(ID, embedding_checkpoint)
    monkeypatch.setattr(hub, "commit", lambda repo, revision="main": "f" * 40)
    assert local_checkpoint(ID).name == "f" * 40 != old.name


def test_folder_takes_precedence_over_a_hub_model(hub: Hub, classifier_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(classifier_checkpoint, tmp_path / ID)
    assert open_checkpoint(ID).path == Path(ID)
    assert open_checkpoint(Path(ID)).revision is None
    assert not hub.log


@pytest.mark.parametrize(
    "name", ["./toys/classifier", "../x", "a/b/c", "/toys/classifier", "~/x", "a--b", "org/", "x@"]
)
def test_invalid_id_is_a_path_and_sends_no_request(hub: Hub, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"expected a checkpoint \(a directory with config.json\), found nothing"):
        open_checkpoint(name)
    assert not hub.log


def test_path_object_may_be_an_id(hub: Hub) -> None:
    assert local_checkpoint(Path(ID)) == local_checkpoint(ID)


def test_unknown_name_error_mentions_folder_and_hub(hub: Hub) -> None:
    with pytest.raises(CheckpointError) as error:
        open_checkpoint("toys/clasifier")
    assert str(error.value) == (
        "toys/clasifier: expected a checkpoint (a directory with config.json, or a model of the hub), found no such "
        f"directory, and {hub.url} has no model 'toys/clasifier', or not for you; check the spelling, and if the model "
        "is private, log in with 'hf auth login' or set HF_TOKEN"
    )


def test_unknown_revision_error_names_it(hub: Hub) -> None:
    with pytest.raises(CheckpointError, match=rf"{hub.url}/{ID} has no revision 'v9'; name one of its branches"):
        open_checkpoint(f"{ID}@v9")


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (403, "GatedRepo", rf"/{ID} is gated; accept its conditions there, then log in"),
        (401, "RepoNotFound", rf"has no model '{ID}', or not for you; .*private, log in with 'hf auth login'"),
        (403, "", rf"refuses access to '{ID}' \(.*403.*\); log in with 'hf auth login' or set HF_TOKEN"),
    ],
)
def test_refused_access_error_suggests_a_login(hub: Hub, status: int, code: str, message: str) -> None:
    hub.refused[ID] = status, code
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(ID)


def test_offline_mode_without_cached_model_fails(hub: Hub, hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _offline(monkeypatch)
    with pytest.raises(CheckpointError, match=rf"the hub's cache {hub_cache}/hub does not have .* HF_HUB_OFFLINE=0"):
        open_checkpoint(ID)
    assert not hub.log


def test_offline_mode_with_partly_cached_model_fails(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    (local_checkpoint(ID) / "model.safetensors").unlink()
    _offline(monkeypatch)
    with pytest.raises(CheckpointError, match=r"does not have all of its files while HF_HUB_OFFLINE forbids"):
        open_checkpoint(ID)


def test_unreachable_hub_without_cached_model_fails(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    set_endpoint(_closed_port(), monkeypatch)
    with pytest.raises(CheckpointError, match=r"getting .* from the hub .* failed \(ConnectError: .*its cache"):
        open_checkpoint(ID)


@pytest.mark.timeout(20)
def test_silent_hub_times_out(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.silent = True
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.1)
    with pytest.raises(CheckpointError, match=r"failed \(ReadTimeout: timed out\)"):
        open_checkpoint(ID)


def test_hub_model_error_names_missing_parts(hub: Hub, tmp_path: Path) -> None:
    hub.add("toys/other", tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"found a model on the hub .*without config.json and weights"):
        open_checkpoint("toys/other")


def test_adapter_on_the_hub_is_refused(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").write_text('{"peft_type": "LORA", "base_model_name_or_path": "org/base"}')
    hub.add("toys/adapter", tmp_path)
    with pytest.raises(CheckpointError, match="found a LoRA adapter of org/base"):
        open_checkpoint("toys/adapter")


def test_missing_huggingface_hub_error_names_the_extra(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"^toys/x: expected a .*'huggingface_hub'.*pip install .*\[hub\]"):
        open_checkpoint("toys/x")


def test_export_command_accepts_a_hub_id(hub: Hub, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    result = CliRunner().invoke(main, ["export", ID, str(bundle), "--precision", "fp32"])
    assert result.exit_code == 0, result.output
    manifest = Manifest.read(bundle)
    assert (manifest.source["path"], manifest.source["revision"]) == (ID, hub.commit(ID))

    name, sha256 = find_checkpoint(manifest, None)
    assert name == f"{ID}@{hub.commit(ID)}"
    assert check_checkpoint(name, sha256).path == local_checkpoint(ID)


def test_export_command_takes_a_dotted_path_for_a_folder(hub: Hub, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["export", f"./{ID}", str(tmp_path / "bundle")])
    assert result.exit_code == 1
    assert "expected a checkpoint (a directory with config.json), found nothing" in result.output
    assert not hub.log


def test_training_accepts_a_hub_id(hub: Hub, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text,label\nhello there,greeting\nbye then,farewell\nwhat is it,question\n", encoding="utf-8")
    settings = TrainSettings(epochs=1, batch_size=3, precision="fp32")
    report = fine_tune("text-classification", ID, data, data, tmp_path / "tuned", settings)
    assert (report["base"], report["base_revision"]) == (ID, hub.commit(ID))
    assert open_checkpoint(tmp_path / "tuned").task() == open_checkpoint(ID).task()
