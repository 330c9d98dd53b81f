"""The install command that messages name, after where bert-export itself was installed from."""

import importlib.metadata
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from bert_runtime.errors import MissingExtraError
from bert_runtime.installation import install_command

SOURCES = ("bench", "bert_export", "models", "runtime")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    folder = tmp_path / "my clone"
    folder.mkdir()
    return folder


def record(monkeypatch: pytest.MonkeyPatch, direct_url: str | None) -> None:
    """Let the installation's metadata have these contents of direct_url.json; `None`: it has no such file."""
    stub = SimpleNamespace(read_text=lambda name: direct_url)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: stub)


def test_release_of_an_index_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    record(monkeypatch, None)
    assert install_command("cpu") == "pip install 'bert-export[cpu]'"


@pytest.mark.parametrize(
    ("installed_as", "options"), [({}, ""), ({"editable": False}, ""), ({"editable": True}, "-e ")]
)
def test_clone_is_installed_again(
    monkeypatch: pytest.MonkeyPatch, clone: Path, installed_as: dict[str, bool], options: str
) -> None:
    record(monkeypatch, json.dumps({"url": clone.as_uri(), "dir_info": installed_as}))
    assert install_command("export") == f"pip install {options}'{clone}[export]'"
    assert str(MissingExtraError("torch", "export", "exporting")).endswith(
        f"install it with: pip install {options}'{clone}[export]'"
    )


def test_wheel_file_is_installed_again(monkeypatch: pytest.MonkeyPatch, clone: Path) -> None:
    wheel = clone / "bert_export-0.1.0-py3-none-any.whl"
    wheel.touch()
    record(monkeypatch, json.dumps({"url": wheel.as_uri(), "archive_info": {"hash": "sha256=00"}}))
    assert install_command("cpu") == f"pip install '{wheel}[cpu]'"


@pytest.mark.parametrize(
    ("direct_url", "location"),
    [
        (
            {"url": "https://example.org/b.git", "vcs_info": {"vcs": "git", "commit_id": "c0ffee"}},
            "git+https://example.org/b.git@c0ffee",
        ),
        (
            {
                "url": "file:///srv/b.git",
                "vcs_info": {"vcs": "git", "requested_revision": "main", "commit_id": "c0ffee"},
            },
            "git+file:///srv/b.git@main",
        ),
        ({"url": "https://example.org/b.whl", "archive_info": {}}, "https://example.org/b.whl"),
    ],
)
def test_address_is_installed_again(
    monkeypatch: pytest.MonkeyPatch, direct_url: dict[str, object], location: str
) -> None:
    record(monkeypatch, json.dumps(direct_url))
    assert install_command("hub") == f"pip install 'bert-export[hub] @ {location}'"


@pytest.mark.parametrize(
    "direct_url", ["", "{", "[]", '{"url": 1}', '{"url": "file:///no/such/folder", "dir_info": {}}']
)
def test_unknown_or_deleted_origin_names_the_distribution(monkeypatch: pytest.MonkeyPatch, direct_url: str) -> None:
    record(monkeypatch, direct_url)
    assert install_command("cpu") == "pip install 'bert-export[cpu]'"


def test_sources_that_are_not_installed_name_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> object:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", absent)
    assert install_command("cpu") == "pip install 'bert-export[cpu]'"


def test_this_installation_has_the_extra() -> None:
    """A misspelt extra would be a warning of pip that nobody reads."""
    extras = set(importlib.metadata.metadata("bert-export").get_all("Provides-Extra") or [])
    root = Path(__file__).parents[2]
    sources = [path.read_text(encoding="utf-8") for folder in SOURCES for path in (root / folder).glob("**/*.py")]
    named = {name for text in sources for name in re.findall(r'MissingExtraError\([^)]*?,\s*"(\w+)",', text)}
    assert named
    assert named <= extras
