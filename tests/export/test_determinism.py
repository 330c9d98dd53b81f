"""Two exports of one checkpoint differ in their timings alone."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bert_runtime.bundle.digest import DIGEST_KEY


def exported(checkpoint: Path, bundle: Path, hash_seed: int) -> Path:
    """Export in a process of its own, in which sets and dictionaries of strings hash otherwise."""
    script = "import sys; from bert_export import export; export(*sys.argv[1:])"
    environment = os.environ | {"PYTHONHASHSEED": str(hash_seed)}
    subprocess.run([sys.executable, "-c", script, checkpoint, bundle], env=environment, check=True, capture_output=True)
    return bundle


def without_timings(bundle: Path) -> dict[str, Any]:
    values: dict[str, Any] = json.loads((bundle / "bundle.json").read_text(encoding="utf-8"))
    for key in ("default_precision", "default_reason"):  # which of two equally fast variants is the faster
        del values[key]
    for variant in values["variants"]:
        del variant["latency_ms"]
    return values


def test_exports_repeat_byte_for_byte(classifier_checkpoint: Path, tmp_path: Path) -> None:
    first, second = (exported(classifier_checkpoint, tmp_path / f"{seed}" / "bundle", seed) for seed in (1, 2))
    names = sorted(path.name for path in first.iterdir())
    assert names == sorted(path.name for path in second.iterdir())
    for name in set(names) - {"bundle.json", "README.md"}:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name
    left, right = without_timings(first), without_timings(second)
    digests = left.pop(DIGEST_KEY), right.pop(DIGEST_KEY)
    assert left == right
    precisions = [json.loads((bundle / "bundle.json").read_text())["default_precision"] for bundle in (first, second)]
    assert (digests[0] == digests[1]) == (precisions[0] == precisions[1])
