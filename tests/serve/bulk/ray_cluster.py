"""A Ray cluster on this machine, in processes of its own. Import this module before Ray."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

os.environ |= {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DEDUP_LOGS": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # its default is announced with a warning
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # on all systems, addresses stay on the loopback interface
}

NODE = {"include_dashboard": False, "object_store_memory": 80_000_000, "node_ip_address": "127.0.0.1"}
"""Arguments of every node."""


@contextmanager
def ray_folder() -> Iterator[None]:
    """Let Ray write its files into a new folder, which is removed at the end."""
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short, since the path of a socket is at most 107 bytes
    Path(folder, "ray").mkdir()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("RAY_TMPDIR", folder)
            yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def ray_cluster(workers: int) -> Iterator[Any]:
    """Yield a `ray.cluster_utils.Cluster` of a head without cores and workers of one core, as Ray counts them."""
    with ray_folder():
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **NODE})
        try:
            for _ in range(workers):
                cluster.add_node(num_cpus=1, **NODE)
            yield cluster
        finally:
            cluster.shutdown()
