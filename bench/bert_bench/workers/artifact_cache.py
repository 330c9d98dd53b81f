"""What engines make of a checkpoint before they can run it, made once and kept."""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from time import monotonic
from typing import Any

from bert_bench.engines import PreparedSpec
from bert_bench.workers.environments import Environment
from bert_bench.workers.worker_process import WorkerProcess
from bert_runtime.bundle.atomic_folders import atomic_replace_dir
from bert_runtime.machine import installed_versions
from bert_runtime.tasks import TextInput

__all__ = ["ArtifactCache"]

_TIMEOUT_S = 3600.0
"""How long one engine's preparation may take; quantizing a large model with calibration takes minutes."""

_OWN_TOOLS = ("bert-export", "torch", "onnx", "onnx-ir", "onnxscript", "onnxruntime", "numpy")


@dataclass(frozen=True, kw_only=True)
class ArtifactCache:
    """Where a checkpoint's files are made and kept: `CACHE/files/CHECKPOINT/ENGINE-KEY`.

    The key is a hash over the engine, the versions of the packages that make its files, and the calibration texts if it
    reads them. A folder appears whole or not at all.
    """

    cache: Path
    checkpoint_key: str
    texts: Sequence[TextInput]
    """For calibration."""
    progress: Callable[[str], None]

    def environment(self, name: str | None) -> Environment | None:
        """The environment of that name, made if need be; `None` for this process's own."""
        if name is None:
            return None
        environment = Environment(name, self.cache)
        environment.ensure(self.progress)
        return environment

    def prepared(self, spec: PreparedSpec) -> PreparedSpec:
        """The engine with its files, made if need be; raises `BenchError` with the reason where they cannot be."""
        environment = self.environment(spec.prepare_environment or spec.environment)
        config = spec.artifact_config
        key: dict[str, Any] = {"config": [config.precision, dict(config.settings)]}
        if spec.calibrated and spec.precision == "int8":
            key["texts"] = list(self.texts)
        folder = self.folder(config.name, environment, key)
        if not folder.is_dir():
            self.progress(f"preparing {spec.name}")
            with atomic_replace_dir(folder) as building, self.worker(environment) as worker:
                begin = monotonic()
                worker.call("make", replace(spec, folder=None), building, self.texts)
                self.progress(f"prepared {spec.name} in {monotonic() - begin:.0f} s")
        return replace(spec, folder=folder)

    def made(self, name: str, method: str, *arguments: Any) -> Path:
        """A folder in which a request of the worker, given the path of a file or folder inside it, has written.

        The path is `folder / name`, which is returned.
        """
        folder = self.folder(name, None, {"method": method})
        if not folder.is_dir():
            self.progress(f"making {name}")
            with atomic_replace_dir(folder) as building, self.worker(None) as worker:
                worker.call(method, *arguments, building / name)
        return folder / name

    def folder(self, name: str, environment: Environment | None, key: Mapping[str, Any]) -> Path:
        """Where the files of that name belong."""
        versions: Any = installed_versions(_OWN_TOOLS) if environment is None else environment.key
        text = json.dumps([name, versions, key], sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return self.cache / "files" / self.checkpoint_key[:16] / f"{name}-{digest}"

    def worker(self, environment: Environment | None) -> WorkerProcess:
        """A process in that environment with time for long work."""
        return WorkerProcess(environment, timeout_s=_TIMEOUT_S)
