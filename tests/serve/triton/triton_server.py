"""A real Triton server on loopback ports, from the wheel of nvidia-pytriton."""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

ENVIRONMENT = "BERT_EXPORT_TRITON"
"""Environment variable that names the virtual environment with the wheel, see `make test-triton`."""

_START_S = 60
"""Longest time until all models are loaded."""


class TritonInstallation:
    """The server's program, and a folder of backends for the Python of its environment.

    Args:
        environment: a virtual environment with nvidia-pytriton and what `bert_runtime` needs.
        backends: a new folder for the Python backend and the stub of that Python's version.
    """

    def __init__(self, environment: Path, backends: Path) -> None:
        (site,) = environment.glob("lib/python3.*/site-packages")
        installed = site / "pytriton/tritonserver"
        self.program = installed / "bin/tritonserver"
        self.path = environment / "bin"
        self.backends = backends
        self.stub = installed / "python_backend_stubs" / site.parent.name.removeprefix("python")
        self.stub /= "triton_python_backend_stub"
        python = backends / "python"
        shutil.copytree(installed / "backends/python", python)
        (python / self.stub.name).symlink_to(self.stub)  # a copy would not find the libraries beside the original

    def problem(self) -> str | None:
        """Return why the server cannot run here, `None` if it can."""
        for program in (self.program, self.stub):
            done = subprocess.run(["ldd", program], capture_output=True, text=True)
            missing = [line.split()[0] for line in done.stdout.splitlines() if "not found" in line]
            if done.returncode or missing:
                return f"{program.name} does not run here: {', '.join(missing) or done.stderr.strip()}"
        return None


def find_installation(backends: Path) -> TritonInstallation:
    """Return the installation that `ENVIRONMENT` names; skip the test where there is none that runs."""
    folder = os.environ.get(ENVIRONMENT)
    if folder is None:
        pytest.skip(f"needs nvidia-pytriton in the environment that {ENVIRONMENT} names: make test-triton")
    installation = TritonInstallation(Path(folder), backends)
    if problem := installation.problem():
        pytest.skip(problem)
    return installation


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


@contextmanager
def running_server(installation: TritonInstallation, repository: Path, log: Path, *options: str) -> Iterator[str]:
    """Start a server, yield its address once all models are ready, and stop it.

    Args:
        installation: the server's program.
        repository: its model repository.
        log: the file that its log is written to.
        *options: further options of `tritonserver`.
    """
    from tritonclient.http import InferenceServerClient

    port = free_port()
    command = [
        str(installation.program), "--model-repository", str(repository),
        "--backend-directory", str(installation.backends), "--http-address", "127.0.0.1", "--http-port", str(port),
        "--allow-grpc", "false", "--allow-metrics", "false", *options,
    ]  # fmt: skip
    variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    variables["PATH"] = f"{installation.path}:{variables['PATH']}"  # Triton's stub runs the first python3
    with log.open("wb") as stream:
        server = subprocess.Popen(command, env=variables, stdout=stream, stderr=stream)
        try:
            client = InferenceServerClient(f"127.0.0.1:{port}")
            end = time.monotonic() + _START_S
            while not _is_ready(client):
                assert server.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            client.close()
            yield f"127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(20)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def _is_ready(client: object) -> bool:
    try:
        ready: bool = client.is_server_ready()  # type: ignore[attr-defined]
    except OSError:
        return False
    return ready
