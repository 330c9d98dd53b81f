"""Plans and answers of the load generator, and one small run of every part on our own server."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
from click.testing import CliRunner

from bert_bench.experiments.serving import main
from bert_bench.serving.load import Answers, Plan, run_load
from bert_bench.serving.peer_throughput import summarize_rounds
from bert_bench.serving.wire_formats import KSERVE, OPENAI, TRITON, Request, WireFormat

REQUESTS = (Request(name="embeddings", path="/e", texts=4), Request(name="empty", path="/live"))


def answers(index: list[int], start_s: list[float], latency_ms: list[float], status: list[int]) -> Answers:
    return Answers(
        requests=REQUESTS, index=np.array(index), start_s=np.array(start_s), latency_ms=np.array(latency_ms),
        status=np.array(status), client_cpu_s=0.1,
    )  # fmt: skip


def test_answers_count_texts_of_successful_requests_only() -> None:
    found = answers([0, 1, 0, 0], [0.0, 0.1, 0.2, 0.3], [10.0, 20.0, 30.0, 40.0], [200, 200, 429, 200])
    assert found.texts() == 8
    assert found.named("embeddings").tolist() == [10.0, 40.0]
    assert found.statuses() == {"200": 3, "429": 1}


def test_requests_per_second_leave_out_the_first_seconds() -> None:
    slow_start = answers([0] * 5, [0.0, 1.0, 1.1, 1.2, 1.3], [1000.0, 100.0, 100.0, 100.0, 100.0], [200] * 5)
    assert slow_start.per_second(1.05) == pytest.approx(4 / 0.35)
    assert answers([0], [0.0], [10.0], [200]).per_second() == 0.0


def test_latencies_leave_out_the_warm_up() -> None:
    warm = answers([0] * 4, [0.0, 0.5, 1.5, 2.0], [900.0, 800.0, 10.0, 20.0], [200] * 4)
    assert summarize_rounds([(warm, 1.0)])["p50_ms"] == 15.0
    short = answers([0] * 2, [0.0, 0.5], [900.0, 800.0], [200] * 2)
    assert summarize_rounds([(short, 1.0)])["p50_ms"] == 850.0


@pytest.mark.parametrize("wire_format", [OPENAI, KSERVE, TRITON])
def test_requests_hold_all_texts(wire_format: WireFormat) -> None:
    request = wire_format.request(["one", "zwei drei"])
    assert request.texts == 2
    assert "zwei drei" in json.dumps(json.loads(request.body))


def test_embeddings_of_answers() -> None:
    openai = json.dumps({"data": [{"embedding": [1, 2]}, {"embedding": [3, 4]}]}).encode()
    kserve = json.dumps({"outputs": [{"shape": [2, 2], "data": [1, 2, 3, 4]}]}).encode()
    for wire_format, answer in ((OPENAI, openai), (KSERVE, kserve), (TRITON, kserve)):
        assert wire_format.embeddings(answer).tolist() == [[1, 2], [3, 4]]


class _Teapot(BaseHTTPRequestHandler):
    """Refuses everything at once."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(429)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.mark.slow
def test_callers_at_a_constant_rate_stay_spread_over_the_period() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Teapot) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        plan = Plan(
            ports=[server.server_address[1]], requests=[Request(name="any", path="/", body="{}")], callers=40,
            seconds=6, rate_per_caller=0.5,
        )  # fmt: skip
        found = run_load(plan)
        server.shutdown()
    start_s = found.start_s - found.start_s.min()
    counts, _ = np.histogram(start_s[start_s > 2.0], np.arange(2.0, 5.5, 0.5))
    assert counts.min() >= 3, counts  # 10 in half a second on average; all callers together before, then none
    assert counts.max() <= 20, counts


@pytest.mark.slow
def test_experiment_measures_our_server(tmp_path: Path, embedding_bundle: Path, embedding_checkpoint: Path) -> None:
    """Every run of locust takes a second or two to start."""
    texts, output = tmp_path / "texts.txt", tmp_path / "serving.json"
    texts.write_text("".join(f"the card number {number} has not arrived\n" for number in range(70)), encoding="utf-8")
    options = ["--checkpoint", str(embedding_checkpoint), "--texts", str(texts), "text", "--output", str(output)]
    options += ["--seconds", "2", "--rounds", "1", "--overload-s", "8", "--requests", "40", "--starts", "1"]
    parts = [word for part in ("latency", "overload", "start", "memory") for word in ("--part", part)]
    result = CliRunner().invoke(main, [str(embedding_bundle), *options, *parts])
    assert result.exit_code == 0, result.output
    found = json.loads(output.read_text(encoding="utf-8"))
    assert found["latency"]["request_p50_ms"] > found["latency"]["empty_handler_p50_ms"] > 0
    assert found["overload"]["capacity_per_s"] > 0
    assert "200" in found["overload"]["statuses"]
    assert found["memory"]["statuses"] == {"200": found["memory"]["requests"]}
    assert "p99 of what is admitted, ms" in result.output
