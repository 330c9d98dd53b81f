"""What the experiments share: where their results go."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bert_bench.conditions import current_conditions
from bert_runtime.machine import available_cores

__all__ = ["write_result"]


def write_result(path: Path, values: dict[str, Any], threads: int | None = None) -> None:
    """Writes `values` with the conditions of this run, the command among them."""
    conditions = asdict(current_conditions(threads or available_cores()))
    conditions["argv"] = ("python", "-m", f"bert_bench.experiments.{Path(sys.argv[0]).stem}", *sys.argv[1:])
    text = json.dumps({"conditions": conditions, **values}, indent=2, ensure_ascii=False, allow_nan=False)
    path.write_text(text + "\n", encoding="utf-8")
