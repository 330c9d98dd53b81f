"""JSON files of checkpoints."""

import json
from pathlib import Path

from bert_models.files import write_json


def test_numbers_that_json_lacks_are_null(tmp_path: Path) -> None:
    value = {"epochs": [{"pearson": float("nan")}, {"pearson": 0.5}], "best": (float("inf"), 1, True, None, "a")}
    write_json(path := tmp_path / "training.json", value)
    assert json.loads(path.read_text(), parse_constant=str) == {
        "epochs": [{"pearson": None}, {"pearson": 0.5}],
        "best": [None, 1, True, None, "a"],
    }
