"""The artifact cache: files that engines derive from a checkpoint, written once and kept."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from time import monotonic
from typing import Any

from bert_bench.engines import PreparedSpec
from bert_bench.workers.environments import Environment
from bert_bench.workers.worker_process import WorkerProcess
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.machine import installed_versions
from bert_runtime.tasks import TextInput

__all__ = ["ArtifactCache"]

_TIMEOUT_S = 3600.0
"""Time limit of one preparation; quantizing a large model with calibration takes minutes."""

_KEY_DISTRIBUTIONS = ("bert-export", "torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "numpy")
"""Distributions whose versions key the artifacts that are made in this process's environment."""

_KEY_PACKAGES = ("bert_export", "bert_models", "bert_runtime", "bert_bench")
"""Packages whose code keys them, too."""

_SPEC_PACKAGES = ("bert_bench.engines",)
"""Packages whose code calls the libraries that write a peer's files."""


@dataclass(frozen=True, kw_only=True)
class ArtifactCache:
    """Makes and keeps a checkpoint's artifacts in `CACHE/files/CHECKPOINT/ENGINE-KEY`.

    The key is a hash of the engine, the versions of the packages that write its files, the code that calls them, and
    the calibration texts if it reads them: a bundle of other code is another one, whatever its version. A folder
    appears complete or not at all.
    """

    cache: Path
    checkpoint_key: str
    texts: Sequence[TextInput]
    """Calibration texts."""
    progress: Callable[[str], None]

    def environment(self, name: str | None) -> Environment | None:
        """Return the environment of that name, installing it if necessary; `None` for this process's.

        Raises:
            BenchError: it cannot be installed.
        """
        if name is None:
            return None
        environment = Environment(name, self.cache)
        environment.ensure(self.progress)
        return environment

    def prepared(self, spec: PreparedSpec) -> PreparedSpec:
        """Return the specification with the folder of its files, writing them if necessary.

        Raises:
            BenchError: the files cannot be made.
        """
        environment = self.environment(spec.prepare_environment or spec.environment)
        config = spec.artifact_config
        kind, code = [config.precision, dict(config.settings)], _sources_sha256(*_SPEC_PACKAGES)
        key: dict[str, Any] = {"kind": kind, "code": code}
        if spec.needs_calibration and spec.precision == "int8":
            key["texts"] = list(self.texts)
        folder = self.folder(config.name, environment, key)
        if not folder.is_dir():
            self.progress(f"preparing {spec.name}")
            with atomic_replace_dir(folder) as building, self.worker(environment) as worker:
                begin = monotonic()
                worker.call("prepare_artifacts", replace(spec, folder=None), building, self.texts)
                self.progress(f"prepared {spec.name} in {monotonic() - begin:.0f} s")
        return replace(spec, folder=folder)

    def artifact(self, name: str, method: str, *arguments: Any) -> Path:
        """Return the path of a file or folder that a worker writes, writing it if necessary.

        Args:
            name: name of the file or folder in the artifact's folder.
            method: the request (method of `Service`) that writes it; its last argument is the path.
            arguments: the other arguments of the request.

        Raises:
            BenchError: the worker cannot write it.
        """
        given = [repr(argument) for argument in arguments if not isinstance(argument, str | Path)]
        key = {"method": method, "arguments": given, "code": _sources_sha256(*_KEY_PACKAGES)}
        folder = self.folder(name, None, key)
        if not folder.is_dir():
            self.progress(f"making {name}")
            with atomic_replace_dir(folder) as building, self.worker(None) as worker:
                worker.call(method, *arguments, building / name)
        return folder / name

    def folder(self, name: str, environment: Environment | None, key: Mapping[str, Any]) -> Path:
        """Return the folder for artifacts of that name, made in that environment, from what `key` holds."""
        versions: Any = installed_versions(_KEY_DISTRIBUTIONS) if environment is None else environment.key
        text = json.dumps([name, versions, key], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self.cache / "files" / self.checkpoint_key[:16] / f"{name}-{digest}"

    def worker(self, environment: Environment | None) -> WorkerProcess:
        """Start a worker in that environment with a time limit for long work."""
        return WorkerProcess(environment, timeout_s=_TIMEOUT_S)


@cache
def _sources_sha256(*packages: str) -> str:
    """Return a hash of the sources of packages, native kernels included."""
    digest = hashlib.sha256()
    for package in packages:
        folder = Path(str(files(package)))
        for path in sorted(path for path in folder.rglob("*") if path.suffix in (".py", ".so")):
            digest.update(f"{path.relative_to(folder)} {sha256_file(path)}\n".encode())
    return digest.hexdigest()
