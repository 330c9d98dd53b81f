"""Checkpoints by hub id, from a small server on loopback that speaks the hub's file interface."""

import shutil
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import huggingface_hub
import pytest
import torch
from click.testing import CliRunner
from huggingface_hub import constants

from bert_bench.checkpoints import check_checkpoint, find_checkpoint
from bert_export.cli import main
from bert_models import CheckpointError, load_model, open_checkpoint
from bert_models.hub import CHECKPOINT_FILES, PICKLE_FILES, local_checkpoint
from bert_models.tokenizer_files import TOKENIZER_FILES
from bert_models.training import TrainSettings, fine_tune
from bert_models.weights import WEIGHT_FILES
from bert_runtime import Manifest
from bert_runtime.errors import MissingExtraError

from .hub_server import Hub

ID = "toys/classifier"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home of huggingface_hub, so that nothing of the user's is read or written."""
    home = tmp_path / "huggingface"
    for name, value in vars(constants).items():
        if isinstance(value, str) and value.startswith(constants.HF_HOME):
            monkeypatch.setattr(constants, name, str(home) + value.removeprefix(constants.HF_HOME))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", True)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.chdir(tmp_path)
    return home


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch, classifier_checkpoint: Path) -> Iterator[Hub]:
    """A running hub with the toy classifier, which is the one that huggingface_hub asks."""
    hub = Hub()
    hub.add(ID, classifier_checkpoint)
    _ask(hub.url, monkeypatch)
    huggingface_hub.close_session()
    yield hub
    huggingface_hub.close_session()
    hub.stop()


def _ask(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "ENDPOINT", url)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", url + "/{repo_id}/resolve/{revision}/{filename}")


def _offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)


def test_a_model_of_the_hub_is_the_same_as_its_folder(hub: Hub, classifier_checkpoint: Path) -> None:
    ours, theirs = open_checkpoint(ID), open_checkpoint(classifier_checkpoint)
    assert (ours.name, ours.revision) == (ID, hub.commit(ID))
    assert (theirs.name, theirs.revision) == (str(classifier_checkpoint), None)
    assert ours.sha256() == theirs.sha256()
    assert ours.tokenizer().to_str() == theirs.tokenizer().to_str()
    models = [load_model(each, each.task()) for each in (ours, theirs)]
    assert all(map(torch.equal, *(model.state_dict().values() for model in models)))


def test_only_the_files_that_are_read_are_downloaded(hub: Hub, classifier_checkpoint: Path) -> None:
    folder = local_checkpoint(ID)
    assert hub.asked() == {each.name for each in classifier_checkpoint.iterdir()}
    assert {each.name for each in folder.iterdir()} == {each.name for each in classifier_checkpoint.iterdir()}


def test_every_file_that_can_be_read_can_be_downloaded() -> None:
    assert {*WEIGHT_FILES, *TOKENIZER_FILES, "config.json", "modules.json"} <= {*CHECKPOINT_FILES, *PICKLE_FILES}


def test_a_sentence_transformers_folder_comes_whole(hub: Hub, embedding_checkpoint: Path) -> None:
    hub.add("toys/embedding", embedding_checkpoint)
    assert open_checkpoint("toys/embedding").task() == open_checkpoint(embedding_checkpoint).task()


def test_pickled_weights_are_downloaded_only_where_there_are_no_safetensors(
    hub: Hub, classifier_checkpoint: Path, tmp_path: Path
) -> None:
    both = Path(shutil.copytree(classifier_checkpoint, tmp_path / "both"))
    (both / "pytorch_model.bin").write_bytes(b"an older copy")
    hub.add("toys/both", both)
    local_checkpoint("toys/both")
    assert "pytorch_model.bin" not in hub.asked()

    (both / "model.safetensors").unlink()
    hub.add("toys/pickled", both)
    folder = local_checkpoint("toys/pickled")
    assert (folder / "pytorch_model.bin").read_bytes() == b"an older copy"


def test_the_second_time_nothing_is_downloaded(hub: Hub) -> None:
    first = local_checkpoint(ID)
    hub.asked()
    assert local_checkpoint(ID) == first
    assert not hub.asked()


def test_the_cache_serves_in_offline_mode_without_a_word(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = local_checkpoint(ID)
    hub.log.clear()
    _offline(monkeypatch)
    assert local_checkpoint(ID) == first
    assert not hub.log
    assert not caplog.records


def test_the_cache_serves_with_a_warning_where_the_hub_is_down(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = local_checkpoint(ID)
    _ask(_closed_port(), monkeypatch)
    assert local_checkpoint(ID) == first
    assert f"using commit {hub.commit(ID)} from the cache" in caplog.text


def _closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def test_a_revision_is_a_branch_a_tag_or_a_commit(hub: Hub, embedding_checkpoint: Path) -> None:
    for revision in ("v2", "refs/pr/1"):
        hub.add(ID, embedding_checkpoint, revision)
        commit = hub.commit(ID, revision)
        for name in (f"{ID}@{revision}", f"{ID}@{commit}"):
            opened = open_checkpoint(name)
            assert (opened.name, opened.revision) == (name, commit)
            assert opened.path.name == commit
    assert open_checkpoint(ID).revision == hub.commit(ID)


def test_a_branch_that_moved_is_followed(hub: Hub, embedding_checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = local_checkpoint(ID)
    hub.add(ID, embedding_checkpoint)
    monkeypatch.setattr(hub, "commit", lambda repo, revision="main": "f" * 40)
    assert local_checkpoint(ID).name == "f" * 40 != old.name


def test_a_folder_goes_before_a_model_of_the_same_name(hub: Hub, classifier_checkpoint: Path, tmp_path: Path) -> None:
    shutil.copytree(classifier_checkpoint, tmp_path / ID)
    assert open_checkpoint(ID).path == Path(ID)
    assert open_checkpoint(Path(ID)).revision is None
    assert not hub.log


@pytest.mark.parametrize(
    "name", ["./toys/classifier", "../x", "a/b/c", "/toys/classifier", "~/x", "a--b", "org/", "x@"]
)
def test_what_cannot_be_an_id_is_a_path_and_the_hub_is_not_asked(hub: Hub, name: str) -> None:
    with pytest.raises(CheckpointError, match=r"expected a checkpoint \(a directory with config.json\), found nothing"):
        open_checkpoint(name)
    assert not hub.log


def test_a_path_object_can_hold_an_id(hub: Hub) -> None:
    assert local_checkpoint(Path(ID)) == local_checkpoint(ID)


def test_a_mistyped_name_is_neither_a_folder_nor_on_the_hub(hub: Hub) -> None:
    with pytest.raises(CheckpointError) as error:
        open_checkpoint("toys/clasifier")
    assert str(error.value) == (
        "toys/clasifier: expected a checkpoint (a directory with config.json, or a model of the hub), found no such "
        f"directory, and {hub.url} has no model 'toys/clasifier', or not for you; check the spelling, and if the model "
        "is private, log in with 'hf auth login' or set HF_TOKEN"
    )


def test_an_unknown_revision_is_named(hub: Hub) -> None:
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
def test_files_that_the_hub_keeps_back_ask_for_a_login(hub: Hub, status: int, code: str, message: str) -> None:
    hub.refused[ID] = status, code
    with pytest.raises(CheckpointError, match=message):
        open_checkpoint(ID)


def test_offline_and_not_in_the_cache(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _offline(monkeypatch)
    with pytest.raises(CheckpointError, match=rf"the hub's cache {cache}/hub does not have .* HF_HUB_OFFLINE=0"):
        open_checkpoint(ID)
    assert not hub.log


def test_offline_and_only_partly_in_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    (local_checkpoint(ID) / "model.safetensors").unlink()
    _offline(monkeypatch)
    with pytest.raises(CheckpointError, match=r"does not have all of its files while HF_HUB_OFFLINE forbids"):
        open_checkpoint(ID)


def test_no_network_and_not_in_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    _ask(_closed_port(), monkeypatch)
    with pytest.raises(CheckpointError, match=r"getting .* from the hub .* failed \(ConnectError: .*its cache"):
        open_checkpoint(ID)


@pytest.mark.timeout(20)
def test_a_hub_that_never_answers_is_given_up(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.silent = True
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.1)
    with pytest.raises(CheckpointError, match=r"failed \(ReadTimeout: timed out\)"):
        open_checkpoint(ID)


def test_a_model_that_is_no_checkpoint_says_what_it_lacks(hub: Hub, tmp_path: Path) -> None:
    hub.add("toys/other", tmp_path / "nothing")
    with pytest.raises(CheckpointError, match=r"found a model on the hub .*without config.json and weights"):
        open_checkpoint("toys/other")


def test_without_huggingface_hub_the_extra_is_named(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"^toys/x: expected a .*'huggingface_hub'.*bert-export\[hub\]"):
        open_checkpoint("toys/x")


def test_from_hub_id_to_bundle_on_the_command_line(hub: Hub, tmp_path: Path) -> None:
    bundle = tmp_path / "bundle"
    result = CliRunner().invoke(main, ["export", ID, str(bundle), "--precision", "fp32"])
    assert result.exit_code == 0, result.output
    manifest = Manifest.read(bundle)
    assert (manifest.source["path"], manifest.source["revision"]) == (ID, hub.commit(ID))

    name, sha256 = find_checkpoint(manifest, None)
    assert name == f"{ID}@{hub.commit(ID)}"
    assert check_checkpoint(name, sha256).path == local_checkpoint(ID)


def test_the_command_line_tells_a_folder_from_an_id(hub: Hub, tmp_path: Path) -> None:
    result = CliRunner().invoke(main, ["export", f"./{ID}", str(tmp_path / "bundle")])
    assert result.exit_code == 1
    assert "expected a checkpoint (a directory with config.json), found nothing" in result.output
    assert not hub.log


def test_training_starts_from_a_hub_id(hub: Hub, tmp_path: Path) -> None:
    data = tmp_path / "data.csv"
    data.write_text("text,label\nhello there,greeting\nbye then,farewell\nwhat is it,question\n", encoding="utf-8")
    settings = TrainSettings(epochs=1, batch_size=3, precision="fp32")
    report = fine_tune("text-classification", ID, data, data, tmp_path / "tuned", settings)
    assert (report["base"], report["base_revision"]) == (ID, hub.commit(ID))
    assert open_checkpoint(tmp_path / "tuned").task() == open_checkpoint(ID).task()
