"""Bulk work on a Ray cluster: a task for each part.

A part's file appears by a rename within the output folder, so a part that Ray runs again, because its node died, gives
one file all the same. Ray Data does not promise that: it names files by the attempt that wrote them. Tasks get the
names of files, and read and write them themselves: texts and answers never pass the driver or Ray's object store. All
nodes need the bundle, the inputs and the output folder under the same paths.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from bert_runtime import BertError, DeploymentError, MissingExtraError
from bert_serve.bulk.part_writer import Job, PartResult, answer_part
from bert_serve.bulk.parts import Part

__all__ = ["RayEngine"]

_log = logging.getLogger("bert_serve")

_MAX_RETRIES = 10
"""Times that a part is started again because its node or process died. A judgement: a part that kills its process
should not do so forever."""

_CANCEL_S = 10.0
"""Seconds that cancelled parts have to end. A judgement."""

_WAITING_PER_REPLICA = 2
"""Parts that are submitted for each replica, so that none waits for the driver."""


@dataclass(frozen=True)
class RayEngine:
    """Answer parts on a Ray cluster, see `bert_serve.bulk.run.Engine`.

    Each worker process of Ray loads the bundle for its first part, and keeps it for the next ones.
    """

    address: str | None = None
    """Address of the cluster; `None` starts Ray on this machine, and stops it at the end."""
    replicas: int | None = None
    """Parts that are answered at the same time; by default as many as the cluster has cores for."""
    cores_per_replica: int = 1

    def __call__(self, job: Job, parts: Sequence[Part], advance: Callable[[int], object]) -> Iterator[PartResult]:
        """Yield the results of parts as they are done.

        Raises:
            BundleError: the bundle cannot be loaded on a node.
            DeploymentError: Ray cannot be reached, or a part killed its processes again and again.
            MissingExtraError: Ray is not installed.
            OSError: the output cannot be written.
        """
        with _connected(self.address) as ray:
            function = job.function
            cores = self.cores_per_replica
            self._check_cores(ray)
            options = dict(function.load_options) | {"threads": cores, "inter_threads": cores}
            job = replace(job, function=replace(function, load_options=tuple(options.items())))
            task = ray.remote(num_cpus=cores, max_retries=_MAX_RETRIES)(answer_part)
            shared = ray.put(job)
            waiting = list(reversed(parts))
            running: list[Any] = []
            try:
                while waiting or running:
                    while waiting and len(running) < self._limit(ray):
                        running.append(task.remote(shared, waiting.pop()))
                    done, running = ray.wait(running, num_returns=1)
                    result = _result(ray, done[0])
                    advance(result.rows)
                    yield result
            finally:  # after an error, so that nothing writes when the run has ended; Ray may go on for the program
                for reference in running:
                    ray.cancel(reference, force=True)
                if running:
                    ray.wait(running, num_returns=len(running), timeout=_CANCEL_S)

    def _check_cores(self, ray: Any) -> None:
        """Raise `DeploymentError` where no part would ever start; warn where a cluster needs larger nodes for that."""
        nodes = [node.get("Resources", {}).get("CPU", 0) for node in ray.nodes() if node.get("Alive")]
        largest = int(max(nodes, default=0))
        if largest >= self.cores_per_replica:
            return
        problem = f"expected a machine of {self.cores_per_replica} cores or more, found {largest}"
        if self.address is None:
            raise DeploymentError(f"{problem}; give fewer threads")
        _log.warning("%s on the largest node; waiting for a larger one, or give fewer threads", problem)

    def _limit(self, ray: Any) -> int:
        """Return how many parts may be with Ray; nodes come and go, so that this is asked again."""
        if self.replicas is not None:
            return self.replicas
        cores = ray.cluster_resources().get("CPU", 0)
        return max(1, int(cores) // self.cores_per_replica) * _WAITING_PER_REPLICA


def _result(ray: Any, reference: Any) -> PartResult:
    try:
        result: PartResult = ray.get(reference)
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, BertError | OSError):
            raise error.cause from None
        if isinstance(error.cause, ModuleNotFoundError):
            raise DeploymentError(f"{error.cause} on a node: install bert-export[cpu,ray] on all of them") from None
        raise
    except ray.exceptions.RayError as error:
        first_line = str(error).strip().partition("\n")[0]
        raise DeploymentError(f"a part could not be answered on the cluster: {first_line}") from None
    return result


@contextmanager
def _connected(address: str | None) -> Iterator[Any]:
    """Yield the module `ray`, connected to a cluster; disconnect at the end, unless the program had connected it."""
    if address is None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # a Ray of ours reports nothing to its makers
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise MissingExtraError("ray", "ray", "the engine ray") from None
    if ray.is_initialized():
        yield ray
        return
    try:
        ray.init(
            address="local" if address is None else address,
            include_dashboard=False if address is None else None,
            log_to_driver=False,
            configure_logging=False,
        )
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        first_line = str(error).strip().partition("\n")[0]
        raise DeploymentError(f"{address or 'this machine'}: Ray cannot be reached: {first_line}") from None
    try:
        yield ray
    finally:
        ray.shutdown()
