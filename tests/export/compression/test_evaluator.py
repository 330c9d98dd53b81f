"""Candidates of a pool, their training, and what an interrupted search leaves."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from bert_export.compression.candidates import Candidate, Shape
from bert_export.compression.evaluator import CandidateEvaluator
from bert_export.compression.goal import CompressionSettings
from bert_export.compression.halving import Trial
from bert_export.compression.journal import Journal
from bert_export.compression.latency_table import LatencyTable
from bert_export.compression.planning import Rung, TrainingRows
from bert_export.compression.search import Measured
from bert_export.errors import ParityError
from bert_models.distillation import DistillationSettings

CONFIG = SimpleNamespace(
    family="bert", num_layers=4, intermediate_size=128, norm_first=False, local_layers=(), num_layer_groups=None
)


def time_shapes(made: CandidateEvaluator, shapes: list[Shape], slower: float = 1.0) -> list[dict[str, Any]]:
    """Return the predicted latencies of some shapes, which are slower than that on a machine that is twice as slow."""
    times = {shape: 2 * slower * made.table.predict_ms(shape) for shape in shapes}
    return LatencyTable({**times, Shape(4, 128): 2 * made.table.predict_ms(Shape(4, 128))}).to_json()


def evaluator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CandidateEvaluator:
    """Return an evaluator whose models take time in proportion to their size, and lose less with earlier layers."""
    times = {Shape(layers, width): layers * (1 + width / 64) for layers in (1, 4) for width in (64, 128)}
    monkeypatch.setattr(CandidateEvaluator, "_time_shapes", lambda self, shapes: time_shapes(self, shapes))
    given: dict[str, Any] = {
        "surgeon": SimpleNamespace(
            model=SimpleNamespace(config=CONFIG), influence=[0.1, 0.4, 0.2, 0.3], loss=lambda item: sum(item.layers),
            row_s=0.01, can_cut=lambda item: True,
        ),
        "data": SimpleNamespace(training_rows=TrainingRows(num_given=500, num_copies=500)),
        "files": SimpleNamespace(given=None), "reference": None,
        "reserve_s": 20.0,
    }  # fmt: skip
    return CandidateEvaluator(
        folder=tmp_path, journal=Journal(tmp_path / "j.jsonl", {}), settings=CompressionSettings(budget_s=100.0),
        table=LatencyTable(times), progress=lambda line: None, **given,
    )  # fmt: skip


def test_a_pool_has_the_largest_fast_enough_candidates_of_each_strategy_in_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = evaluator(tmp_path, monkeypatch).pool(1.9)
    assert [(item.layers, item.intermediate_size) for item in found] == [
        ((0, 3), 128), ((0, 1), 128), ((1, 3), 128), ((0, 2, 3), 64), ((0, 1, 2), 64), ((1, 2, 3), 64),
    ]  # fmt: skip
    assert evaluator(tmp_path, monkeypatch).pool(7.0) == []  # one layer of half the width: 12 / 2 = 6 times as fast


def test_a_shape_that_is_slower_than_predicted_is_replaced_by_a_narrower_one_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = evaluator(tmp_path, monkeypatch)
    assert {item.shape for item in made.pool(1.9)} == {Shape(2, 128), Shape(3, 64)}
    (tmp_path / "other").mkdir()
    made = evaluator(tmp_path / "other", monkeypatch)
    asked: list[list[Shape]] = []

    def time_slowly(self: CandidateEvaluator, shapes: list[Shape]) -> list[dict[str, Any]]:
        asked.append(shapes)
        return time_shapes(self, shapes, slower=1.2)

    monkeypatch.setattr(CandidateEvaluator, "_time_shapes", time_slowly)
    assert {item.shape for item in made.pool(1.9)} == {Shape(1, 128), Shape(2, 64)}
    assert made.predicted_speedup(Shape(2, 128)) == pytest.approx(2 / 1.2)
    found = [shape for shapes in asked for shape in shapes]
    assert found == [Shape(3, 64), Shape(2, 128), Shape(2, 64), Shape(1, 128)]
    num_asked = len(asked)
    made.pool(1.9)
    assert len(asked) == num_asked


def test_time_and_pace_follow_from_the_budget_and_the_predicted_speed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = evaluator(tmp_path, monkeypatch)
    assert made.time_left_s() == pytest.approx(80.0, abs=1.0)
    half = Candidate(layers=(0, 1), intermediate_size=128)
    assert made.row_s([half]) == pytest.approx(0.005)
    monkeypatch.setattr(made, "_train", lambda *given: {"metric": 0.9, "seconds": 40.0, "checkpoint": "checkpoints/x"})
    trial = made.train("2x", half, Rung(1, 4, 1000), None)
    assert trial == Trial(half, 0.9, "checkpoints/x", num_rows=1000)
    assert made.row_s([half]) == pytest.approx(0.01)  # it took twice as long as was estimated
    other = Candidate(layers=(0, 1), intermediate_size=64)
    assert made.row_s([other]) == pytest.approx(0.02 / made.predicted_speedup(other.shape))
    monkeypatch.setattr(made, "_train", lambda *given: {"metric": 0.9, "seconds": 30.0, "checkpoint": "checkpoints/y"})
    made.train("2x", other, Rung(3, 2, 500), None)  # slower than expected, which changes nothing for the first
    assert made.row_s([half]) == pytest.approx(0.01)


def test_a_resumed_training_does_not_tell_how_long_an_epoch_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = evaluator(tmp_path, monkeypatch)
    half = Candidate(layers=(0, 1), intermediate_size=128)
    start = tmp_path / "checkpoints/layers-0-1-width-128-at-2x/cut"
    start.mkdir(parents=True)
    (start / "config.json").touch()

    def train(student: str, output: Path, rung: Rung, *, resume: bool) -> dict[str, Any]:
        made.hidden_states.once_s += 30.0
        return {"metric": "accuracy", "best": {"accuracy": 0.8}, "seconds": 2.0 if resume else 70.0}

    monkeypatch.setattr(made, "_distill", train)
    state = start.with_name("cut-then-2-of-1000") / "training/last.ckpt"
    state.parent.mkdir(parents=True)
    state.touch()
    resumed = made.train("2x", half, Rung(1, 2, 1000), None)
    assert made.row_s([half]) == pytest.approx(0.005)  # as estimated
    assert made.train("2x", half, Rung(1, 4, 1000), resumed) is not None
    assert made.row_s([half]) == pytest.approx(0.01)  # without what the uncompressed model took once


def test_rows_are_answered_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = evaluator(tmp_path, monkeypatch)
    assert made.rows.answers_s(500) == pytest.approx(500 * (12e-3 + 0.01 / 3))
    made.settings = CompressionSettings(hidden_weight=0.0)
    assert made.rows.answers_s(500) == pytest.approx(500 * 12e-3)
    monkeypatch.setattr(made, "_train", lambda *given: {"metric": 0.9, "seconds": 40.0, "checkpoint": "checkpoints/x"})
    made.train("2x", Candidate(layers=(0, 1), intermediate_size=128), Rung(1, 4, 500), None)
    assert made.rows.answers_s(500) == 0.0
    assert made.rows.answers_s(700) == pytest.approx(200 * 12e-3)


def test_a_level_that_was_begun_goes_on_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = evaluator(tmp_path, monkeypatch)
    assert made.may_begin("2x")
    made.plan("2x", list)
    made.reserve_s = 1000.0
    assert (made.may_begin("2x"), made.may_begin("3x")) == (True, False)


def test_copies_are_trained_on_without_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, Any] = {
        "data": SimpleNamespace(
            given=range(5), unlabelled=[], write_first=lambda folder, number: folder / f"train-{number}.jsonl"
        ),
        "files": SimpleNamespace(given=Path("train.jsonl"), dev=Path("dev.jsonl")),
        "surgeon": SimpleNamespace(
            model=SimpleNamespace(config=CONFIG), row_s=0.01, source=SimpleNamespace(name="teacher")
        ),
        "reference": SimpleNamespace(answer=None),
        "settings": CompressionSettings(lr=1e-4, hidden_weight=0.5),
    }
    made = replace(evaluator(tmp_path, monkeypatch), **given)
    calls: list[tuple[Any, ...]] = []
    monkeypatch.setattr("bert_export.compression.evaluator.distill", lambda *given, **options: calls.append(given))
    for rung in (Rung(3, 1, 5), Rung(1, 4, 8)):
        made._distill("student", tmp_path / "out", rung, resume=False)
    found = [(train.name, settings.epochs, settings.lr, losses) for _, _, train, _, _, settings, losses in calls]
    assert found == [
        ("train-5.jsonl", 1, 1e-4, DistillationSettings(hidden_weight=0.5, hard_weight=1.0)),
        ("train-8.jsonl", 4, 1e-4, DistillationSettings(hidden_weight=0.5, hard_weight=0.0)),
    ]


def test_an_interrupted_search_measures_the_best_of_the_longest_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = evaluator(tmp_path, monkeypatch)
    assert made.measure_best() == []
    results = {(1, 0.9): "short-good", (1, 0.8): "short", (2, 0.85): "long"}
    for (epochs, metric), name in results.items():
        item = Candidate(layers=(0,), intermediate_size=128)
        monkeypatch.setattr(
            made, "_train", lambda *given, m=metric, n=name: {"metric": m, "seconds": 1, "checkpoint": n}
        )
        made.train(name, item, Rung(1, epochs, 9), None)
    monkeypatch.setattr(made, "measure", lambda trial: Measured(trial, 2.0, 1.0))
    assert [found.trial.checkpoint for found in made.measure_best()] == ["long"]


def test_a_longer_training_that_is_worse_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = evaluator(tmp_path, monkeypatch)
    before = Trial(Candidate(layers=(0,), intermediate_size=64), 0.9, "checkpoints/short")
    (tmp_path / before.checkpoint).mkdir(parents=True)

    def train(student: str, output: Path, rung: Rung, *, resume: bool) -> dict[str, Any]:
        output.mkdir(parents=True)
        return {"metric": "accuracy", "best": {"accuracy": metric}, "seconds": 1.0}

    monkeypatch.setattr(made, "_distill", train)
    metric = 0.8
    assert made.train("2x", before.candidate, Rung(1, 3, 9), before) == before
    assert (tmp_path / before.checkpoint).is_dir()
    metric = 0.95
    longer = made.train("2x", before.candidate, Rung(1, 4, 9), before)
    assert longer is not None
    again = made.train("2x", before.candidate, Rung(1, 4, 9), longer)  # as many epochs again: another folder
    assert again is not None
    assert (tmp_path / again.checkpoint).is_dir()
    longer = again
    assert (longer.metric, (tmp_path / longer.checkpoint).is_dir()) == (0.95, True)
    assert not (tmp_path / before.checkpoint).exists()


def test_a_trained_candidate_that_is_a_little_too_slow_is_narrowed_and_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = evaluator(tmp_path, monkeypatch)
    layers = {Shape(depth, width): depth * (1 + width / 64) for depth in (1, 4) for width in (64, 512)}
    made.table = LatencyTable(layers)
    cut: list[tuple[Path, int]] = []

    def save(item: Candidate, folder: Path, trained: Path) -> None:
        cut.append((trained, item.intermediate_size))
        folder.mkdir(parents=True)

    made.surgeon.save = save  # type: ignore[method-assign, assignment]
    trained: list[tuple[str, int]] = []

    def train(student: str, output: Path, rung: Rung, *, resume: bool) -> dict[str, Any]:
        output.mkdir(parents=True)
        trained.append((student, rung.num_rows))
        return {"metric": "accuracy", "best": {"accuracy": 0.8}, "seconds": 1.0}

    monkeypatch.setattr(made, "_distill", train)
    trial = Trial(Candidate(layers=(0, 1), intermediate_size=512), 0.9, "checkpoints/wide", 1000)
    made.num_answered = 1000
    (tmp_path / trial.checkpoint).mkdir(parents=True)
    made.trials = [trial]
    # 2 layers take 2 · (1 + 512 / 64) = 18; of width 448 16, of width 384 14.
    assert made.narrow("2x", Measured(trial, 1.5, 1.0), 2.0) is None  # also the narrowest would be too slow
    narrower = made.narrow("2x", Measured(trial, 1.75, 1.0), 2.0)
    assert narrower is not None
    assert (narrower.candidate.intermediate_size, narrower.metric) == (384, 0.8)  # kept although the metric is lower
    assert (narrower.narrowed_from, narrower.num_rows) == (512, 1000)
    start = tmp_path / "checkpoints/layers-0-1-width-384-at-2x/narrowed"
    assert (cut, trained) == ([(tmp_path / trial.checkpoint, 384)], [(str(start), 1000)])
    assert not start.exists()
    assert (tmp_path / trial.checkpoint).is_dir()
    assert made.trials == [trial, narrower]
    monkeypatch.setattr(CandidateEvaluator, "time_left_s", lambda self: 0.0)
    assert made.narrow("2x", Measured(trial, 1.75, 1.0), 2.0) == narrower  # as the journal says
    made.times.known_s[trial.candidate] = 0.03  # 15 seconds with the given rows, where 10 are a tenth of the budget
    assert made.narrow("2x", Measured(replace(trial, checkpoint="slow"), 1.9, 1.0), 2.0) is None
    made.times.known_s[trial.candidate] = 0.001
    assert made.narrow("2x", Measured(replace(trial, checkpoint="other"), 1.9, 1.0), 2.0) is not None
    assert trained[1:] == [(str(tmp_path / "checkpoints/layers-0-1-width-448-at-2x/narrowed"), 500)]


def test_a_bundle_tells_how_many_neurons_are_left_out_before_the_longest_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = evaluator(tmp_path, monkeypatch)
    made.table = LatencyTable(
        {Shape(depth, width): depth * (1 + width / 64) for depth in (1, 4) for width in (64, 512)}
    )
    trial = Trial(Candidate(layers=(0, 1), intermediate_size=512), 0.9, "checkpoints/wide")

    def fitting_width(speedup: float) -> int | None:
        monkeypatch.setattr(made, "measure", lambda trial: Measured(trial, speedup, 1.0) if speedup else None)
        found = made.fit_to_speed(trial, 2.0)
        return found and found.intermediate_size

    found = [fitting_width(speedup) for speedup in (2.1, 2.01, 1.75, 1.2, 0.0)]
    assert found == [512, 448, 384, None, None]  # fast enough, a little too slow, too slow for that, not measured


def test_a_kill_before_the_result_is_written_loses_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = evaluator(tmp_path, monkeypatch)
    before = Trial(Candidate(layers=(0,), intermediate_size=64), 0.9, "checkpoints/short")
    (tmp_path / before.checkpoint).mkdir(parents=True)
    monkeypatch.setattr(
        made, "_distill", lambda *given, **options: {"metric": "f1", "best": {"f1": 0.95}, "seconds": 1.0}
    )

    def stop(entry: Any) -> str:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("bert_export.compression.journal._line", stop)
        with pytest.raises(KeyboardInterrupt):
            made.train("2x", before.candidate, Rung(1, 3, 9), before)
    assert (tmp_path / before.checkpoint).is_dir()  # what the repeated command starts from
    again = evaluator(tmp_path, monkeypatch)
    monkeypatch.setattr(again, "_distill", made._distill)
    assert again.train("2x", before.candidate, Rung(1, 3, 9), before) is not None
    assert not (tmp_path / before.checkpoint).exists()


def test_a_candidate_that_fails_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = evaluator(tmp_path, monkeypatch)
    lines: list[str] = []
    made.progress = lines.append
    monkeypatch.setattr(made, "_train", lambda *given: {"failed": "the loss became nan"})
    assert made.train("2x", Candidate(layers=(0,), intermediate_size=64), Rung(1, 1, 9), None) is None
    assert lines == ["warning: layers-0-width-64 failed: the loss became nan"]


def test_a_candidate_that_cannot_be_exported_is_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = evaluator(tmp_path, monkeypatch)
    lines: list[str] = []
    made.progress = lines.append

    def fail(*given: Any, **options: Any) -> None:
        raise ParityError("the exported graph differs from PyTorch")

    monkeypatch.setattr("bert_export.compression.evaluator.export", fail)
    trial = Trial(Candidate(layers=(0,), intermediate_size=64), 0.9, "checkpoints/short")
    assert made.measure(trial) is made.measure(trial) is None
    assert lines[1:] == [
        "warning: layers-0-width-64 cannot be exported: the exported graph differs from PyTorch",
    ]
    made.trials, made.work = [trial], {trial.checkpoint: 1}
    assert made.measure_best() == []
    shorter = Trial(replace(trial.candidate, intermediate_size=128), 0.8, "checkpoints/shorter")
    made.trials, made.work = [trial, shorter], {trial.checkpoint: 2, shorter.checkpoint: 1}
    measurements = made.measurements

    def measure(item: Trial) -> dict[str, Any]:
        exported = {"time": {"speedup": 2.0}, "search": {"drop_percent": 1.0}}
        return exported if item == shorter else measurements(item)

    monkeypatch.setattr(made, "measurements", measure)
    assert [found.trial for found in made.measure_best()] == [shorter]


def test_a_pool_has_candidates_that_prune_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = evaluator(tmp_path, monkeypatch)
    table = LatencyTable({**whole.table.measured_ms, Shape(4, 128, 50): 6.5}, [100])
    made = replace(whole, table=table, percents=(100, 50))
    found = {item.shape for item in made.pool(1.7)}
    assert Shape(4, 128, 50) in found
    assert Shape(1, 128, 50) not in found  # nothing is left to be saved behind the only layer
