"""The CPU session's options."""

from pathlib import Path

import onnxruntime

from bert_runtime import load
from bert_runtime.cpu.session import SPIN_MICROSECONDS


def test_threads_spin_for_a_moment_or_not_at_all(classifier_bundle: Path) -> None:
    options = load(classifier_bundle, threads=2, inter_threads=1).session._session.get_session_options()  # type: ignore[attr-defined]
    version = tuple(map(int, onnxruntime.__version__.split(".")[:2]))
    if version >= (1, 26):
        assert options.get_session_config_entry("session.intra_op.spin_duration_us") == str(SPIN_MICROSECONDS)
    else:
        assert options.get_session_config_entry("session.force_spinning_stop") == "1"
