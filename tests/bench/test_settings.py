"""Settings: presets and validation."""

import pytest

from bert_bench import Settings
from bert_bench.json_fields import to_json_values
from bert_runtime import InputError


def test_quick_measures_the_same_cases_in_fewer_rounds() -> None:
    quick, usual = Settings.quick(), Settings()
    assert (quick.shapes, quick.text_tokens) == (usual.shapes, usual.text_tokens)
    assert quick.rounds < usual.rounds


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(InputError) as caught:
        Settings(shapes=((1, 16), (0, 8)), rounds=0, burst_ms=0.0, threads=0)
    for part in ("rounds must be at least 1, found 0", "shape 0x8", "burst_ms must be positive", "threads"):
        assert part in str(caught.value)


def test_no_shapes_are_an_error() -> None:
    with pytest.raises(InputError, match="at least one shape and one text length"):
        Settings(shapes=())


def test_renamed_settings_keep_their_json_keys() -> None:
    values = to_json_values(Settings(clients=(2, 4)))
    assert values["callers"] == [2, 4]
    assert {"callers_s", "callers_rounds", "loads", "peak_s", "labelled"} <= values.keys()
