"""Callers of a server, for locust, which runs this file in a process of its own: gevent patches its sockets.

The environment variable BERT_BENCH_PLAN names the JSON file of a `bert_bench.serving.load.Plan`. Each caller goes
through the plan's requests in order, from a place of its own, with one connection that stays open. What each request
took is written to the plan's `output`.
"""

import json
import os
import random
import time
from pathlib import Path
from typing import Any

import gevent
from locust import FastHttpUser, events, task
from locust.env import Environment

PLAN: dict[str, Any] = json.loads(Path(os.environ["BERT_BENCH_PLAN"]).read_text(encoding="utf-8"))
REQUESTS: list[dict[str, Any]] = PLAN["requests"]
# No gzip: a server that compresses would be measured for that.
HEADERS = {"Content-Type": "application/json", "Accept-Encoding": "identity"}

answers: list[tuple[int, float, float, int]] = []
"""Index of the request in the plan, seconds of its start on the clock of `time.time`, milliseconds, and HTTP status."""


class Caller(FastHttpUser):
    """Sends one request at a time: the next after the answer, or at a constant rate."""

    host = PLAN["urls"][0]
    network_timeout = connection_timeout = 120.0
    started = 0

    def on_start(self) -> None:
        """Choose a server, a place in the plan, and at a constant rate a random moment of the period to start at."""
        number, Caller.started = Caller.started, Caller.started + 1
        self.url = PLAN["urls"][number % len(PLAN["urls"])]
        # Steps of the golden section spread any number of callers evenly.
        self.next = int(len(REQUESTS) * (number * 0.618 % 1)) if PLAN["spread"] else 0
        if PLAN["rate_per_caller"]:
            time.sleep(random.Random(number).random() / PLAN["rate_per_caller"])
        self.due_s = time.perf_counter()

    def wait_time(self) -> float:
        """Return the seconds until the next request is due.

        Locust's own `constant_throughput` counts from when the caller was made, so that all callers would send at the
        same moment from the second request on.
        """
        if PLAN["rate_per_caller"] is None:
            return 0.0
        self.due_s += 1 / PLAN["rate_per_caller"]
        return max(0.0, self.due_s - time.perf_counter())

    @task
    def send(self) -> None:
        """Send the next request."""
        index = self.next
        self.next = (index + 1) % len(REQUESTS)
        request = REQUESTS[index]
        start_s, start = time.time(), time.perf_counter()
        response = self.client.request(
            request["method"], self.url + request["path"], name=request["name"], data=request["body"], headers=HEADERS
        )
        answers.append((index, start_s, (time.perf_counter() - start) * 1e3, response.status_code))
        if len(answers) == PLAN["max_requests"]:
            gevent.spawn(self.environment.runner.quit)  # it waits for the callers to end, this one among them


@events.quitting.add_listener
def write_answers(environment: Environment, **_: Any) -> None:
    """Write what was measured."""
    text = json.dumps({"answers": answers, "cpu_s": time.process_time()})
    Path(PLAN["output"]).write_text(text, encoding="utf-8")
