"""Servers that run side by side, of which one at a time may compute."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import run

from bert_bench.engines.int8_preset import INT8_PRESET
from bert_bench.errors import BenchError
from bert_bench.serving.server_process import ServerProcess, free_port
from bert_bench.serving.server_spec import ServerSpec, peer_program
from bert_bench.workers.environments import Environment

__all__ = ["Fleet", "ModelFolders", "RunningServer", "start_server"]

_EXPORT_ENVIRONMENT = "server-fastapi"
"""Environment that has sentence-transformers, which exports the ONNX graphs."""


@dataclass(frozen=True, kw_only=True)
class ModelFolders:
    """Folders of the model, in the formats that servers load.

    Args:
        bundle: our bundle.
        checkpoint: the sentence-transformers checkpoint that it was exported from.
        exports: folder of what `peers/export_onnx.py` writes.
    """

    bundle: Path
    checkpoint: Path
    exports: Path

    def of(self, spec: ServerSpec) -> Path:
        """Return the folder that a server loads."""
        named = {"bundle": self.bundle, "checkpoint": self.checkpoint}
        return named.get(spec.model, self.exports / spec.model).resolve()

    def write_exports(self, cache: Path, progress: Callable[[str], None]) -> None:
        """Write the ONNX exports.

        Raises:
            BenchError: they cannot be made.
        """
        environment = Environment(_EXPORT_ENVIRONMENT, cache)
        environment.ensure(progress)
        command = [
            str(environment.python), "-P", peer_program("export_onnx"),
            str(self.checkpoint), str(self.exports), INT8_PRESET,
        ]  # fmt: skip
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        done = run(command, env={**variables, "HF_HUB_OFFLINE": "1"}, capture_output=True, text=True, check=False)
        if done.returncode:
            raise BenchError(f"the checkpoint cannot be exported for the peers: {done.stderr.strip()[-500:]}")


@dataclass(frozen=True, kw_only=True)
class RunningServer:
    """A server that answers."""

    spec: ServerSpec
    process: ServerProcess
    first_answer_s: float
    """Seconds from its start to its first answer."""

    def pause(self) -> None:
        """Stop the process and its children, so that they take no processor time."""
        self.process.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        self.process.signal(signal.SIGCONT)


@contextmanager
def start_server(
    spec: ServerSpec, models: ModelFolders, cache: Path, progress: Callable[[str], None]
) -> Iterator[RunningServer]:
    """Start a server, wait for its first answer, yield it, and end it.

    Args:
        spec: the server.
        models: where the model is.
        cache: folder of the peers' environments.
        progress: called with a line before an installation.

    Raises:
        BenchError: it cannot be installed or started, or gives no answer.
    """
    environment = None if spec.environment is None else Environment(spec.environment, cache)
    if environment is not None:
        environment.ensure(progress)
    model, port = models.of(spec), free_port()
    argv = spec.argv(None if environment is None else environment.python.parent, model, port)
    cwd = model if spec.in_model_folder else None
    with ServerProcess(argv, port, spec.variables, cwd=cwd, keep_pythonpath=environment is None) as process:
        seconds = process.wait_for_answer(spec.wire_format.request(["hello"]))
        yield RunningServer(spec=spec, process=process, first_answer_s=seconds)


class Fleet:
    """All servers of a comparison, started one after another and then paused.

    Use it as a context manager: leaving the block ends them.

    Args:
        specs: the servers.
        models: where the model is.
        cache: folder of the peers' environments.
        progress: called with a line for each server.
    """

    def __init__(
        self, specs: Sequence[ServerSpec], models: ModelFolders, cache: Path, progress: Callable[[str], None]
    ) -> None:
        self.servers: dict[str, RunningServer] = {}
        """Those that answer, paused, by name."""
        self.errors: dict[str, str] = {}
        """Why the others do not, by name."""
        self._stack = ExitStack()
        for spec in specs:
            try:
                server = self._stack.enter_context(start_server(spec, models, cache, progress))
            except BenchError as error:
                self.errors[spec.name] = str(error)
                progress(f"{spec.name}: {error}")
            else:
                self.servers[spec.name] = server
                server.pause()
                progress(f"{spec.name}: answered after {server.first_answer_s:.1f} s")

    @contextmanager
    def only(self, name: str) -> Iterator[RunningServer]:
        """Let one server go on for the duration of the block."""
        server = self.servers[name]
        server.resume()
        try:
            yield server
        finally:
            server.pause()

    def __enter__(self) -> "Fleet":
        return self

    def __exit__(self, *error: object) -> None:
        for server in self.servers.values():
            server.resume()  # a paused process does not end on SIGTERM
        self._stack.close()
