"""Python environments of the peers whose packages clash with ours: made on demand, kept in the cache.

A worker in one of them runs this distribution's own code, from a folder that holds links to the two packages it needs
and nothing else: our environment's other packages must not stand before the peer's.
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

__all__ = ["Environment", "cache_folder", "installed_modules", "requirements_file"]

_STAMP = "complete"


def cache_folder() -> Path:
    """Return the folder that environments and the engines' files are kept in, see `bert_runtime.cache`."""
    return cache_dir("bench")


def requirements_file(name: str) -> Path:
    """`requirements-<name>.txt`: beside the package in a checkout, inside it in a wheel."""
    package = Path(bert_bench.__file__).parent
    found = [folder / f"requirements-{name}.txt" for folder in (package.parent, package)]
    return next((path for path in found if path.is_file()), found[-1])


@dataclass(frozen=True)
class Environment:
    """A virtual environment made from a requirements file."""

    name: str
    cache: Path

    @property
    def key(self) -> str:
        """Changes with the requirements and with the Python it is made of."""
        text = requirements_file(self.name).read_bytes() + sys.version.encode()
        return hashlib.sha256(text).hexdigest()[:12]

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.cache / "environments" / f"{self.name}-{self.key}"

    @property
    def python(self) -> Path:
        """Its interpreter."""
        return self.folder / "bin" / "python"

    @property
    def distributions(self) -> tuple[str, ...]:
        """What its requirements name."""
        lines = requirements_file(self.name).read_text(encoding="utf-8").splitlines()
        names = (re.split(r"[\[<>=!~; ]", line)[0] for line in lines if not line.startswith("#"))
        return tuple(name for name in names if name)

    def variables(self) -> Mapping[str, str]:
        """Environment variables of a worker that runs in it: our code, nobody else's, and no downloads."""
        return {
            "PYTHONPATH": str(_code_folder(self.cache)),
            "PYTHONNOUSERSITE": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def ensure(self, progress: Callable[[str], None]) -> None:
        """Makes it where it is not there; pip's own configuration decides where packages come from.

        One that was interrupted is made again. Raises `BenchError` with pip's reason.
        """
        if (self.folder / _STAMP).is_file():
            return
        progress(f"installing requirements-{self.name}.txt (log: {self._log})")
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        self._run([sys.executable, "-m", "venv", str(self.folder)])
        pip = [str(self.python), "-m", "pip", "install", "--disable-pip-version-check", "--no-input"]
        self._run([*pip, "-r", str(requirements_file(self.name))])
        (self.folder / _STAMP).touch()

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
            last = next((line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "")
            raise BenchError(f"cannot install requirements-{self.name}.txt: {last.strip()}")


def installed_modules(environment: Environment) -> Path:
    """Where the packages of an environment are, for a worker of another one of the same Python."""
    (folder,) = environment.folder.glob("lib/python*/site-packages")
    return folder


def _code_folder(cache: Path) -> Path:
    """A folder that holds links to `bert_bench` and `bert_runtime` alone."""
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
