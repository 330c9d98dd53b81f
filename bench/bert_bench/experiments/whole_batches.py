"""Measure one batch on all threads against a batch on each, where a graph has an output for every token.

python -m bert_bench.experiments.whole_batches BUNDLE --title NAME --texts FILE --output FILE

Calls of texts in random order are timed interleaved: divided by the runtime into batches of 256 tokens, one on each
thread; and as one batch on all threads, where they have at most 1,024 tokens with their padding. A text that exceeds
the model's maximum is several windows. Calls that are too large for one batch are left out.

Made bench/results/whole-batches-squad.json.
"""

import json
import random
from collections.abc import Iterator, Sequence
from copy import copy
from functools import partial
from pathlib import Path
from typing import Any

import click

from bert_bench.experiments.harness import path_option, time_interleaved, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_bench.timing_statistics import paired_speedup
from bert_runtime import Model, load
from bert_runtime.records import read_records
from bert_runtime.tasks import TextInput

__all__ = ["main", "results_table"]

_CALL_TEXTS, _CALLS = (2, 4, 8, 16), 24
"""Texts of a call, and calls of each size."""


def _calls(model: Model, texts: Sequence[TextInput]) -> Iterator[tuple[str, list[list[TextInput]]]]:
    """Yield the name of each kind of call, and its calls."""
    long = [[text] for text in texts if len(model.tokenize([text])[0].windows) > 1]
    yield "a text of several windows", long
    for size in _CALL_TEXTS:
        yield f"{size} texts", [list(texts[start : start + size]) for start in range(0, len(texts) - size + 1, size)]


def _is_whole(model: Model, call: Sequence[TextInput]) -> bool:
    lengths = [len(window) for item in model.tokenize(call) for window in item.windows]
    return len(lengths) * max(lengths) <= model.whole_batch_tokens


def _run(model: Model, calls: Sequence[Sequence[TextInput]]) -> None:
    for call in calls:
        model.outputs(call)


def results_table(result: Path) -> str:
    """Return the speed-ups in a result file as a Markdown table, one row per kind of call."""
    cases = json.loads(result.read_text("utf-8"))["cases"]
    rows = [
        [
            name, f"{100 * case['fitting']:.0f} %", f"{case['divided_ms']:.2f}", f"{case['whole_ms']:.2f}",
            f"{case['speedup']:.2f}× ({case['p10']:.2f}–{case['p90']:.2f})",
        ]
        for name, case in cases.items()
    ]  # fmt: skip
    return markdown_table(["call", "fit into one batch", "divided: ms", "one batch: ms", "speed (p10–p90)"], rows)


@click.command(help=__doc__)
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--title", required=True, help="Name of the model.")
@path_option("--texts", "File of the task's inputs.")
@path_option("--output", "Result file to write.")
@click.option("--rounds", type=int, default=15, show_default=True, help="Rounds of timing.")
def main(bundle: Path, title: str, texts: Path, output: Path, rounds: int) -> None:
    """Time both ways on every kind of call and write the result."""
    model = load(bundle, precision="int8")
    if not model.whole_batch_tokens:
        raise click.ClickException("expected native kernels and two threads, with which few tokens are one batch")
    divided = copy(model)
    divided.whole_batch_tokens = 0
    inputs = [item for record in read_records(texts) for item in model.task.inputs(record)]
    random.Random(0).shuffle(inputs)
    cases: dict[str, Any] = {}
    for name, possible in _calls(model, inputs):
        calls = [call for call in possible if _is_whole(model, call)]
        if not calls:
            continue
        fitting, calls = len(calls) / len(possible), calls[:_CALLS]
        runs = {"divided": partial(_run, divided, calls), "whole": partial(_run, model, calls)}
        timings = time_interleaved(runs, rounds, 1)
        found = paired_speedup(timings["whole"], timings["divided"])
        cases[name] = {
            "calls": len(calls),
            "fitting": round(fitting, 4),
            **{f"{way}_ms": round(timing.p50_ms / len(calls), 4) for way, timing in timings.items()},
            "speedup": round(found.median, 3),
            "p10": round(found.p10, 3),
            "p90": round(found.p90, 3),
        }
    write_result(output, {"title": title, "rounds": rounds, "cases": cases})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
