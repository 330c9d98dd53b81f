"""Prometheus metrics of a server.

Where `PROMETHEUS_MULTIPROC_DIR` names a folder, processes write their values there, and each answers with the sums.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

from bert_serve.serving.token_queue import Job

__all__ = ["Metrics", "ModelMetrics"]

_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)


class Metrics:
    """All metrics of a server, in a registry of their own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        registry = self.registry
        self._process = ProcessCollector(registry=registry)
        self.requests = Counter(
            "bert_requests", "Requests by route and HTTP status.", ["route", "status"], registry=registry
        )
        self.request_s = Histogram(
            "bert_request_seconds", "Seconds from a request's head to its answer.", ["route"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self.rejected = Counter("bert_rejected", "Requests refused, by reason.", ["reason"], registry=registry)
        self._texts = Counter("bert_texts", "Texts (windows of long ones) computed.", ["model"], registry=registry)
        self._tokens = Counter("bert_tokens", "Tokens computed, without padding.", ["model"], registry=registry)
        self._stage_s = Histogram(
            "bert_stage_seconds", "Seconds of a request by stage: tokenize, queue, inference.", ["model", "stage"],
            buckets=_SECONDS, registry=registry,
        )  # fmt: skip
        self._joined = Histogram(
            "bert_joined_sequences", "Sequences computed together, of one request or several.", ["model"],
            buckets=_COUNTS, registry=registry,
        )  # fmt: skip
        self._queue_tokens = Gauge(
            "bert_queue_tokens", "Tokens that wait.", ["model"], registry=registry, multiprocess_mode="livesum"
        )
        self._reloads = Counter("bert_reloads", "Replaced bundles that were loaded.", ["model"], registry=registry)
        self._reload_failures = Counter(
            "bert_reload_failures", "Replaced bundles that could not be loaded.", ["model"], registry=registry
        )

    def of_model(self, name: str) -> "ModelMetrics":
        """Return the metrics of one model."""
        tokenize_s, queue_s, inference_s = (
            self._stage_s.labels(name, stage) for stage in ("tokenize", "queue", "inference")
        )
        return ModelMetrics(
            name=name,
            texts=self._texts.labels(name),
            tokens=self._tokens.labels(name),
            tokenize_s=tokenize_s,
            queue_s=queue_s,
            inference_s=inference_s,
            joined=self._joined.labels(name),
            queue_tokens=self._queue_tokens.labels(name),
            reloads=self._reloads.labels(name),
            reload_failures=self._reload_failures.labels(name),
        )

    def text(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        if "PROMETHEUS_MULTIPROC_DIR" not in os.environ:
            return generate_latest(self.registry)
        _forget_dead_workers(Path(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
        registry = CollectorRegistry()
        MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        return generate_latest(registry)


def _forget_dead_workers(folder: Path) -> None:
    """Remove what processes that were killed have left in gauges, such as the tokens that waited there."""
    for path in folder.glob("gauge_live*.db"):
        process_id = int(path.stem.rpartition("_")[2])
        try:
            os.kill(process_id, 0)
        except ProcessLookupError:
            path.unlink(missing_ok=True)  # another worker may be asked for the metrics, too
        except OSError:  # it lives, and belongs to another user
            continue


@dataclass(frozen=True, kw_only=True)
class ModelMetrics:
    """The metrics of one model; see `Metrics` for what each counts."""

    name: str
    texts: Counter
    tokens: Counter
    tokenize_s: Histogram
    queue_s: Histogram
    inference_s: Histogram
    joined: Histogram
    queue_tokens: Gauge
    reloads: Counter
    reload_failures: Counter

    def count(self, job: Job) -> None:
        """Count a request whose outputs have just been computed."""
        self.texts.inc(len(job.sequences))
        self.tokens.inc(sum(map(len, job.sequences)))
        self.queue_s.observe(job.started_s - job.queued_s)
        self.inference_s.observe(time.perf_counter() - job.started_s)
