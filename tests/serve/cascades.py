"""A toy cascade for the tests of serving."""

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from bert_runtime import load
from bert_runtime.bundle.digest import manifest_digest
from bert_runtime.bundle.manifest import sha256_file
from bert_runtime.cascade import CascadeManifest
from bert_runtime.cascade.manifest import Part
from bert_runtime.cascade.task import MODELS

__all__ = ["write_cascade"]


def write_cascade(classifier: Path, folder: Path, texts: Sequence[str]) -> Path:
    """Write a cascade of a classifier and a copy of it, in which the large one answers half of the texts.

    The large model's tokenizer is another file, so that it has to tokenize texts again.
    """
    for name in MODELS:
        shutil.copytree(classifier, folder / name)
    path = folder / "large" / "bundle.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    tokenizer = folder / "large" / values["tokenizer"]["file"]
    tokenizer.write_text(json.dumps(json.loads(tokenizer.read_text(encoding="utf-8")), indent=3), encoding="utf-8")
    values["tokenizer"] |= {"sha256": sha256_file(tokenizer), "size_bytes": tokenizer.stat().st_size}
    values["manifest_sha256"] = manifest_digest(values)
    path.write_text(json.dumps(values), encoding="utf-8")
    scores = [cast(Any, result).score for result in load(classifier, threads=1)(texts)]
    manifest = CascadeManifest(
        threshold=float(np.median(scores)),
        parts=tuple(Part(folder=name, sha256=sha256_file(folder / name / "bundle.json")) for name in MODELS),
        metric="accuracy", max_drop_percent=1.0, chosen_on={}, judged_on={},
    )  # fmt: skip
    (folder / "bundle.json").write_text(manifest.to_json(), encoding="utf-8")
    return folder
