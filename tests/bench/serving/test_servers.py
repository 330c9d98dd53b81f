"""Server processes and the registry of peers."""

import sys
from pathlib import Path

import pytest

from bert_bench.errors import BenchError
from bert_bench.serving.fleet import Fleet, ModelFolders
from bert_bench.serving.server_process import ServerProcess, free_port, send
from bert_bench.serving.server_spec import PEERS, ServerSpec, our_server
from bert_bench.serving.wire_formats import OPENAI, Request
from bert_bench.workers.environments import requirements_file

ANSWERING = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200); self.end_headers(); self.wfile.write(b"done")
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""
REQUEST = OPENAI.request(["hello"])


def test_server_process_answers_is_measured_and_ends() -> None:
    port = free_port()
    with ServerProcess([sys.executable, "-c", ANSWERING, str(port)], port) as server:
        assert server.wait_for_answer(REQUEST) > 0
        assert send(port, REQUEST) == (200, b"done")
        assert server.cpu_seconds() > 0
        assert server.resident_bytes() > 1e6
    with pytest.raises(OSError, match="refused"):
        send(port, REQUEST)


def test_server_that_ends_is_reported_with_its_error() -> None:
    program = "print('starting'); raise ValueError('no such model')"
    with (
        ServerProcess([sys.executable, "-c", program], free_port()) as server,
        pytest.raises(BenchError, match=r"ended with exit status 1: ValueError: no such model"),
    ):
        server.wait_for_answer(REQUEST)


def test_server_that_does_not_answer_in_time_is_reported() -> None:
    program = "import time; print('loading', flush=True); time.sleep(60)"
    with (
        ServerProcess([sys.executable, "-c", program], free_port()) as server,
        pytest.raises(BenchError, match=r"did not answer within 0 s \(\w+\): loading"),
    ):
        server.wait_for_answer(REQUEST, timeout_s=0.4)


def test_program_that_does_not_exist_is_reported(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="program cannot be started"):
        ServerProcess([str(tmp_path / "program")], free_port())


def test_fleet_records_servers_that_do_not_start_and_pauses_the_others(tmp_path: Path) -> None:
    def spec(name: str, program: str) -> ServerSpec:
        return ServerSpec(
            name=name, label=name, precision="fp32", model="bundle", command=("python", "-c", program, "{port}")
        )

    models = ModelFolders(bundle=tmp_path, checkpoint=tmp_path, exports=tmp_path)
    specs = [spec("good", ANSWERING), spec("bad", "raise OSError('no port')")]
    with Fleet(specs, models, tmp_path, lambda line: None) as fleet:
        assert fleet.errors == {"bad": "ended with exit status 1: OSError: no port"}
        paused = fleet.servers["good"].process
        with pytest.raises(TimeoutError):
            send(paused.port, REQUEST, timeout_s=0.3)
        with fleet.only("good"):
            assert send(paused.port, REQUEST)[0] == 200


def test_every_peer_has_requirements_and_a_program() -> None:
    for spec in PEERS:
        assert spec.environment is not None
        assert requirements_file(spec.environment).is_file()
        programs = [Path(word) for word in spec.command if word.endswith(".py")]
        assert all(program.is_file() for program in programs)
    assert len({spec.name for spec in PEERS}) == len(PEERS)


def test_our_server_is_a_command_line_of_this_python(tmp_path: Path) -> None:
    command = our_server("int8", "--threads", "1").argv(None, tmp_path, 8123)
    assert command[0] == sys.executable
    assert command[-8:] == ["serve", f"minilm={tmp_path}", "--port", "8123", "--precision", "int8", "--threads", "1"]


def test_request_without_a_body_is_a_get() -> None:
    request = Request(name="empty", method="GET", path="/live")
    assert (request.body, request.texts) == ("", 0)
