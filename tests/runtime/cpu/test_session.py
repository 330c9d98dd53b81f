"""The CPU session's options."""

import time
from pathlib import Path

from bert_runtime import load


def test_threads_rest_soon_after_a_call(classifier_bundle: Path) -> None:
    """They spin for `SPIN_MICROSECONDS`; whatever else runs then has the cores for itself."""
    model = load(classifier_bundle, threads=2, inter_threads=1)
    model("hello there")
    used = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - used < 0.25
