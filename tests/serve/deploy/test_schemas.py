"""The files of docs/deploy against the schemas of their formats; `make test-deploy` installs the programs for that.

Each check is also shown a file with a mistake, which it must find.
"""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from .deploy_files import COMPOSE, DOCKERFILE, INFERENCE_SERVICE, MANIFESTS

pytestmark = pytest.mark.deploy

ENVIRONMENT = "BERT_EXPORT_DEPLOY"
"""Environment variable that names the virtual environment with the programs."""

KUBERNETES = ("1.30", "1.33", "1.37")
"""Releases that the manifests are for; preStop's `sleep` is on by default from the first one."""

Check = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def check() -> Check:
    """Run a program of the environment."""
    folder = os.environ.get(ENVIRONMENT)
    if folder is None:
        pytest.skip(f"needs the environment that {ENVIRONMENT} names: make test-deploy")

    def run(program: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [str(Path(folder, "bin", program)), *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    return run


def changed(path: Path, folder: Path, old: str, new: str) -> Path:
    """Return a copy of a file with one text replaced."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    copy = folder / path.name
    copy.write_text(text.replace(old, new), encoding="utf-8")
    return copy


@pytest.mark.parametrize("version", KUBERNETES)
def test_kubernetes_manifests(check: Check, version: str) -> None:
    done = check("kubernetes-validate", "--strict", "-k", version, *MANIFESTS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"against version {version}") == len(MANIFESTS) == 4


def test_a_misspelt_field_of_a_manifest_is_found(check: Check, tmp_path: Path) -> None:
    (deployment,) = [path for path in MANIFESTS if path.stem == "deployment"]
    copy = changed(deployment, tmp_path, "readinessProbe", "readyProbe")
    done = check("kubernetes-validate", "--strict", "-k", KUBERNETES[-1], copy)
    assert done.returncode != 0
    assert "readyProbe" in done.stdout


def test_inference_service(check: Check) -> None:
    done = check("python", Path(__file__).with_name("check_inference_service.py"), INFERENCE_SERVICE)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("minReplicas: 1", "minimumReplicas: 1", "unknown key minimumReplicas"),
        ("maxReplicas: 10", "maxReplicas: ten", "maxReplicas: expected int, found 'ten'"),
        ("readinessProbe", "readyProbe", "('readyProbe' was unexpected)"),
        ("runAsUser: 10001", "runAsUser: somebody", "'somebody' is not of type"),
    ],
)
def test_a_mistake_in_an_inference_service_is_found(
    check: Check, tmp_path: Path, old: str, new: str, message: str
) -> None:
    copy = changed(INFERENCE_SERVICE, tmp_path, old, new)
    done = check("python", Path(__file__).with_name("check_inference_service.py"), copy)
    assert done.returncode == 1, done.stderr
    assert message in done.stdout


def test_compose_file(check: Check) -> None:
    done = check("check-jsonschema", "--builtin-schema", "vendor.compose-spec", COMPOSE)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_misspelt_key_of_a_compose_file_is_found(check: Check, tmp_path: Path) -> None:
    copy = changed(COMPOSE, tmp_path, "read_only", "readonly")
    assert check("check-jsonschema", "--builtin-schema", "vendor.compose-spec", copy).returncode == 1


def test_dockerfile(check: Check) -> None:
    done = check("hadolint", DOCKERFILE)
    assert (done.returncode, done.stdout) == (0, "")


def test_an_image_that_runs_as_root_is_found(check: Check, tmp_path: Path) -> None:
    copy = changed(DOCKERFILE, tmp_path, "USER 10001:10001", "USER root")
    assert "DL3002" in check("hadolint", copy).stdout
