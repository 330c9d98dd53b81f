"""Progress within a stage: no more lines than needed, with the time left, and every step reported."""

import pytest

from bert_export.fusion import fuse
from bert_export.progress import throttled_steps
from bert_export.quantization import expected_projections, quantize

from .toy_models import CLASSIFIER, CONFIG, captured, probed_activations, toy_model


def test_lines_are_five_seconds_apart_and_tell_the_time_left() -> None:
    lines: list[str] = []
    times = iter(range(0, 100, 2))
    on_step = throttled_steps(lines.append, "quantizing", lambda: float(next(times)))
    for done in range(1, 11):
        on_step(done, 10)
    assert lines == [
        "quantizing: 3 of 10 steps, about 14 s left",
        "quantizing: 6 of 10 steps, about 8 s left",
        "quantizing: 9 of 10 steps, about 2 s left",
    ]


def test_fast_stages_report_nothing() -> None:
    on_step = throttled_steps(lambda line: pytest.fail(line), "quantizing", lambda: 0.0)
    on_step(1, 2)
    on_step(2, 2)


def test_every_weight_is_a_step() -> None:
    model, graph = toy_model(CLASSIFIER), captured(CLASSIFIER)
    expected = expected_projections(CONFIG, fuse(graph, CONFIG, CLASSIFIER))
    steps: list[tuple[int, int]] = []
    quantize(graph, expected, probed_activations(model, graph), on_step=lambda *step: steps.append(step))
    total = expected + CONFIG.num_layers  # each layer's feed-forward block is split, too
    assert steps == [(done, total) for done in range(1, total + 1)]
