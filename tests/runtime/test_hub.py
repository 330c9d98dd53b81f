"""Bundles on a hub: `push` and `pull`, against a server on loopback."""

import json
import shutil
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from bert_export.cli import main
from bert_runtime import BertError, BundleError, HubError, Manifest, MissingExtraError, load
from bert_runtime.hub import pull, push, transfer

from ..hub_server import Hub, set_endpoint

# huggingface_hub passes a stream in a way that its HTTP library is about to drop.
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")

ID = "toys/classifier"


@pytest.fixture
def bundle(classifier_bundle: Path, tmp_path: Path) -> Path:
    """A bundle with a model card and what `tune` leaves."""
    folder = Path(shutil.copytree(classifier_bundle, tmp_path / "bundle"))
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# A toy\n")
    (folder / "tuning.json").write_text("{}")
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def without_tuning(folder: Path) -> dict[str, bytes]:
    return {name: data for name, data in contents(folder).items() if name != "tuning.json"}


def test_pulled_bundle_equals_the_pushed_one(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    url = push(bundle, ID)
    assert url == f"{hub.url}/{ID}/commit/{hub.commit(ID)}"
    assert hub.commits[ID] == [("main", "Upload a bundle of bert-export")]
    assert ID not in hub.private
    manifest = pull(ID, tmp_path / "pulled")
    assert contents(tmp_path / "pulled") == without_tuning(bundle)
    assert manifest == Manifest.read(bundle)
    assert load(tmp_path / "pulled")("hello").to_dict() == load(bundle)("hello").to_dict()


def test_attention_graph_is_pushed_and_pulled(hub: Hub, attention_bundle: Path, tmp_path: Path) -> None:
    push(attention_bundle, ID)
    pull(ID, tmp_path / "pulled")
    assert contents(tmp_path / "pulled") == contents(attention_bundle)


def test_revision_message_and_visibility_are_kept(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    push(bundle, ID, revision="v2", private=True, message="Second try")
    assert (hub.commits[ID], hub.private) == ([("v2", "Second try")], {ID})
    assert not hub.revisions[ID]["main"]
    pull(f"{ID}@v2", tmp_path / "branch")
    pull(f"{ID}@{hub.commit(ID, 'v2')}", tmp_path / "commit")
    assert contents(tmp_path / "branch") == contents(tmp_path / "commit") == without_tuning(bundle)
    with pytest.raises(BundleError, match=rf"^{ID}: expected a bundle \(a model on the hub with bundle.json\)"):
        pull(ID, tmp_path / "main")


def test_private_is_not_promised_of_a_public_repository(hub: Hub, bundle: Path) -> None:
    push(bundle, ID)
    before = dict(hub.revisions[ID]["main"])
    with pytest.raises(HubError, match=f"^{ID}: expected a private repository, found a public one"):
        push(bundle, ID, private=True)
    assert hub.revisions[ID]["main"] == before


def test_damaged_bundle_is_not_pushed(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    (bundle / "tokenizer.json").write_text("{}")
    with pytest.raises(BundleError, match=r"tokenizer\.json: expected .* bytes, found 2"):
        push(bundle, ID)
    with pytest.raises(BundleError, match="expected a bundle"):
        push(tmp_path / "absent", ID)
    assert not hub.log


def test_damaged_download_leaves_nothing_behind(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    push(bundle, ID)
    files = hub.revisions[ID]["main"]
    name = next(name for name in files if name.endswith(".onnx"))
    files[name] = files[name][:-1] + bytes([files[name][-1] ^ 1])
    (tmp_path / "out").mkdir()
    with pytest.raises(BundleError, match=rf"^{ID}: {name}: expected sha256"):
        pull(ID, tmp_path / "out" / "pulled")
    assert not list((tmp_path / "out").iterdir())
    del files[name]
    with pytest.raises(BundleError, match=f"^{ID}: the manifest names '{name}', which the model on the hub does not"):
        pull(ID, tmp_path / "out" / "pulled")
    assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("damaged", [b"", b"[]", b"\xff", b"[" * 100_000, b'{"format_version": 99}'])
def test_damaged_manifest_is_named_by_its_model(hub: Hub, tmp_path: Path, damaged: bytes) -> None:
    hub.revisions[ID] = {"main": {"bundle.json": damaged}}
    with pytest.raises(BundleError, match=rf"^{ID}: bundle\.json: "):
        pull(ID, tmp_path / "pulled")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("revision", ["", "a b", "a\0b", "\ud800"])
def test_impossible_revisions_and_messages_are_refused(hub: Hub, bundle: Path, tmp_path: Path, revision: str) -> None:
    with pytest.raises(HubError, match=r"^expected the name of a branch, without blanks, as revision, found"):
        push(bundle, ID, revision=revision)
    with pytest.raises(HubError, match=r"^expected a message of the commit"):
        push(bundle, ID, message=" ")
    with pytest.raises(HubError, match=r"^expected a model on the hub"):
        pull(f"{ID}@{revision}", tmp_path / "pulled")
    assert not hub.log


@pytest.mark.parametrize("name", ["../outside.onnx", "/tmp/outside.onnx", "a/b.onnx", ".."])
def test_manifest_cannot_name_files_outside_the_bundle(hub: Hub, bundle: Path, tmp_path: Path, name: str) -> None:
    push(bundle, ID)
    files = hub.revisions[ID]["main"]
    files["bundle.json"] = files["bundle.json"].replace(b'"model.fp32.onnx"', json.dumps(name).encode())
    with pytest.raises(BundleError):
        pull(ID, tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()
    assert not hub.requested_files() - {"bundle.json"}


def test_only_a_bundle_is_replaced_and_only_by_force(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    push(bundle, ID)
    output = tmp_path / "pulled"
    pull(ID, output)
    with pytest.raises(BertError, match="a bundle is already there; replace it with --force"):
        pull(ID, output)
    (output / "tokenizer.json").write_text("damaged")
    pull(ID, output, force=True)
    assert contents(output) == without_tuning(bundle)
    (output / "notes.txt").write_text("mine")
    with pytest.raises(BertError, match=r"besides the bundle there is also notes\.txt, which would be lost"):
        pull(ID, output, force=True)
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"")
    with pytest.raises(BertError, match="exists and is not a bundle"):
        pull(ID, tmp_path / "photos", force=True)


def test_a_folder_that_appears_during_the_download_is_not_replaced(
    hub: Hub, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(bundle, ID)
    photos, download = tmp_path / "photos", transfer._download

    def download_slowly(*arguments: Any) -> None:
        photos.mkdir(exist_ok=True)
        (photos / "cat.jpg").write_bytes(b"")
        download(*arguments)

    monkeypatch.setattr(transfer, "_download", download_slowly)
    with pytest.raises(BertError, match="exists and is not a bundle; choose another path; the result is kept in"):
        pull(ID, photos)
    assert (photos / "cat.jpg").is_file()


@pytest.mark.parametrize(
    ("status", "code", "message"),
    [
        (401, "", r"refuses access to 'toys/classifier' \(.*401.*\); log in with 'hf auth login' or set HF_TOKEN"),
        (403, "", r"refuses access to 'toys/classifier' \(.*403.*\); log in"),
        (403, "GatedRepo", "is gated; accept its conditions there"),
        (404, "RepoNotFound", "has no model 'toys/classifier', or not for you"),
    ],
)
def test_refused_access_says_what_to_do(
    hub: Hub, bundle: Path, tmp_path: Path, status: int, code: str, message: str
) -> None:
    hub.refused[ID] = status, code
    with pytest.raises(HubError, match=f"^uploading to {ID} failed: .*{message}"):
        push(bundle, ID)
    assert ID not in hub.revisions
    hub.revisions[ID] = {"main": {"bundle.json": b"{}"}}
    with pytest.raises(HubError, match=f"^downloading {ID} failed: .*{message}"):
        pull(ID, tmp_path / "pulled")
    assert not (tmp_path / "pulled").exists()


def test_unknown_names_and_revisions_are_named(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    with pytest.raises(HubError, match=f"{hub.url} has no model 'toys/other', or not for you; check the spelling"):
        pull("toys/other", tmp_path / "pulled")
    push(bundle, ID)
    with pytest.raises(HubError, match=f"{ID} has no revision 'v9'; name one of its branches"):
        pull(f"{ID}@v9", tmp_path / "pulled")
    for name in ("a/b/c", "", "../x", "a b"):
        with pytest.raises(HubError, match="expected a model on the hub, org/name or org/name@revision, found"):
            pull(name, tmp_path / "pulled")
    with pytest.raises(HubError, match="expected a model on the hub, org/name, found 'a/b@v2'"):
        push(bundle, "a/b@v2")


def test_hub_that_does_not_answer_is_named(
    hub: Hub, bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        closed = f"http://127.0.0.1:{free.getsockname()[1]}"
    set_endpoint(closed, monkeypatch)
    with pytest.raises(HubError, match=f"^uploading to {ID} failed: ConnectError"):
        push(bundle, ID)
    with pytest.raises(HubError, match=f"^downloading {ID} failed: ConnectError"):
        pull(ID, tmp_path / "pulled")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(HubError, match="HF_HUB_OFFLINE forbids asking it; set HF_HUB_OFFLINE=0"):
        pull(ID, tmp_path / "pulled")


def test_missing_client_error_names_the_extra(bundle: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"'huggingface_hub'.*pip install .*\[hub\]"):
        push(bundle, ID)
    with pytest.raises(MissingExtraError, match=r"'huggingface_hub'.*pip install .*\[hub\]"):
        pull(ID, tmp_path / "pulled")


def test_commands_push_and_pull(hub: Hub, bundle: Path, tmp_path: Path) -> None:
    options = ["--revision", "v1", "--private", "--message", "First"]
    result = CliRunner().invoke(main, ["push", str(bundle), ID, *options])
    assert (result.exit_code, result.stdout) == (0, f"{hub.url}/{ID}/commit/{hub.commit(ID, 'v1')}\n")
    assert (hub.commits[ID], hub.private) == ([("v1", "First")], {ID})
    output = tmp_path / "pulled"
    result = CliRunner().invoke(main, ["pull", f"{ID}@v1", str(output)])
    assert (result.exit_code, result.stdout) == (
        0,
        f"wrote {output}: text-classification, 2 variants, hashes as recorded\n",
    )
    result = CliRunner().invoke(main, ["pull", f"{ID}@v1", str(output)])
    assert (result.exit_code, result.output) == (
        1,
        f"Error: {output}: a bundle is already there; replace it with --force\n",
    )
