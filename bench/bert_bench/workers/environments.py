"""Virtual environments for engines whose packages conflict with ours: installed on demand, kept in the cache.

A worker in one of them imports `bert_bench` and `bert_runtime` from a folder that holds links to these two packages
only, so that other packages of our environment do not shadow the engine's.
"""

import hashlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import bert_bench
import bert_runtime
from bert_bench.errors import BenchError
from bert_runtime.cache import cache_dir

__all__ = ["Environment", "bench_cache_dir", "requirements_file", "site_packages"]

_COMPLETE_MARKER = "complete"


def bench_cache_dir() -> Path:
    """Return the folder for environments and artifacts, see `bert_runtime.cache`."""
    return cache_dir("bench")


def requirements_file(name: str) -> Path:
    """Return the path of `requirements-<name>.txt`: next to the package in a checkout, inside it in a wheel."""
    package = Path(bert_bench.__file__).parent
    paths = [folder / f"requirements-{name}.txt" for folder in (package.parent, package)]
    return next((path for path in paths if path.is_file()), paths[-1])


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the packages of a requirements file.

    Args:
        name: the requirements file is `requirements-<name>.txt`.
        cache: the folder below which environments are kept.
    """

    name: str
    cache: Path

    @property
    def key(self) -> str:
        """Hash of the requirements and the Python version."""
        text = requirements_file(self.name).read_bytes() + sys.version.encode()
        return hashlib.sha256(text).hexdigest()[:12]

    @property
    def folder(self) -> Path:
        """The environment's folder."""
        return self.cache / "environments" / f"{self.name}-{self.key}"

    @property
    def python(self) -> Path:
        """The environment's interpreter."""
        return self.folder / "bin" / "python"

    @property
    def distributions(self) -> tuple[str, ...]:
        """Names of the distributions in its requirements."""
        lines = requirements_file(self.name).read_text(encoding="utf-8").splitlines()
        names = (re.split(r"[\[<>=!~; ]", line)[0] for line in lines if not line.startswith("#"))
        return tuple(name for name in names if name)

    def variables(self) -> Mapping[str, str]:
        """Return the environment variables of a worker in it: our two packages importable, no downloads."""
        return {
            "PYTHONPATH": str(_linked_packages(self.cache)),
            "PYTHONNOUSERSITE": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def ensure(self, progress: Callable[[str], None]) -> None:
        """Install it unless it is complete. pip's configuration decides where packages come from.

        An interrupted installation starts over.

        Args:
            progress: called with a line before an installation.

        Raises:
            BenchError: the environment cannot be made; the message ends with pip's reason.
        """
        if (self.folder / _COMPLETE_MARKER).is_file():
            return
        progress(f"installing requirements-{self.name}.txt (log: {self._log})")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._run([sys.executable, "-m", "venv", str(self.folder)])
        pip = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        self._run([*pip, "-r", str(requirements_file(self.name))])
        (self.folder / _COMPLETE_MARKER).touch()

    @property
    def _log(self) -> Path:
        return self.folder.with_name(f"{self.folder.name}.log")

    def _run(self, command: list[str]) -> None:
        with self._log.open("ab") as log:
            try:
                finished = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False)
            except OSError as error:
                raise BenchError(f"cannot make the environment {self.name}: {error}") from None
        if finished.returncode:
            lines = self._log.read_text(errors="replace").splitlines()
            reason = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "")
            raise BenchError(f"cannot install requirements-{self.name}.txt: {reason.strip()}")


def site_packages(environment: Environment) -> Path:
    """Return the environment's site-packages, for a worker of another environment with the same Python version."""
    (folder,) = environment.folder.glob("lib/python*/site-packages")
    return folder


def _linked_packages(cache: Path) -> Path:
    """Return a folder that holds links to `bert_bench` and `bert_runtime` only, creating it if necessary."""
    packages = [Path(module.__file__ or "").parent.resolve() for module in (bert_bench, bert_runtime)]
    key = hashlib.sha256("\n".join(map(str, packages)).encode()).hexdigest()[:12]
    folder = cache / "code" / key
    folder.mkdir(parents=True, exist_ok=True)
    for package in packages:
        link = folder / package.name
        if not link.exists():
            link.unlink(missing_ok=True)
            link.symlink_to(package, target_is_directory=True)
    return folder
