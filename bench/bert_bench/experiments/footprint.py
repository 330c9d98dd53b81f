"""Measure the footprint of a process that serves a bundle: seconds until its first result, and memory over many calls.

python -m bert_bench.experiments.footprint BUNDLE --output FILE [--precision P]...

Each start is a new Python process that imports `bert_runtime`, loads the bundle and calls it with one text; its time
counts from before the process exists, and the median over 10 starts is reported. Memory is the resident set size (RSS)
of one more process: after its first result, then 20 times at even distances over 10,000 calls of one to sixteen random
texts of 1 to 120 words.

Made bench/results/footprint-*.json.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import click

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table
from bert_runtime import Manifest

__all__ = ["main", "results_table"]

_FIRST_RESULT = """
import sys
from bert_runtime import load
model = load(sys.argv[1], precision=sys.argv[2])
model("where is my card?")
"""
"""Program of a start. Arguments: bundle, precision."""

_SERVE = (
    _FIRST_RESULT
    + """
import json, random
import psutil
process, generator = psutil.Process(), random.Random(0)
resident = [process.memory_info().rss]
every, calls = int(sys.argv[3]), int(sys.argv[4])
words = "the of card account payment please where when has not arrived yet top up transfer refund".split()
def text():
    return " ".join(generator.choices(words, k=generator.randint(1, 120)))
for number in range(1, calls + 1):
    count = generator.randint(1, 16) if number % 10 == 0 else 1
    model(text() if count == 1 else [text() for _ in range(count)])
    if number % every == 0:
        resident.append(process.memory_info().rss)
print(json.dumps(resident))
"""
)
"""Program of the process whose memory is measured. Arguments: bundle, precision, calls per measurement, calls."""

_MEASUREMENTS = 20
"""Measurements of memory after the first one."""


def _start_seconds(bundle: Path, precision: str, starts: int) -> list[float]:
    """Return the seconds of each start."""
    seconds = []
    for _ in range(starts):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", _FIRST_RESULT, str(bundle), precision], check=True)
        seconds.append(time.perf_counter() - begin)
    return seconds


def _resident_bytes(bundle: Path, precision: str, calls: int) -> list[int]:
    """Return the resident set sizes in bytes, after the first result and over the calls."""
    arguments = [str(bundle), precision, str(max(1, calls // _MEASUREMENTS)), str(calls)]
    done = subprocess.run([sys.executable, "-c", _SERVE, *arguments], check=True, capture_output=True, text=True)
    return [int(size) for size in json.loads(done.stdout)]


def _measure(bundle: Path, precision: str, starts: int, calls: int) -> dict[str, Any]:
    seconds = _start_seconds(bundle, precision, starts)
    megabytes = [round(size / 1e6, 1) for size in _resident_bytes(bundle, precision, calls)]
    later = megabytes[2:]  # the first tenth meets the largest shapes, and opens the parallel sessions
    return {
        "first_answer_s": {"median": round(median(seconds), 3), "all": [round(value, 3) for value in seconds]},
        "resident_mb": {"first_answer": megabytes[0], "over_calls": megabytes[1:]},
        "growth_after_a_tenth": round(max(later) / later[0] - 1, 4),
    }


def results_table(result: Path) -> str:
    """Return the figures in a result file as a Markdown table, one row per precision."""
    values = json.loads(result.read_text("utf-8"))
    header = ["precision", "first result, s", "memory then, MB", f"after {values['calls']:,} calls, MB"]
    rows = []
    for precision, found in values["variants"].items():
        memory = found["resident_mb"]
        row = [
            f"{found['first_answer_s']['median']:.2f}",
            *(f"{mb:.0f}" for mb in (memory["first_answer"], memory["over_calls"][-1])),
        ]
        rows.append([precision.upper(), *row])
    return markdown_table(header, rows)


@click.command(help=__doc__)
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@path_option("--output", "Result file to write.")
@click.option("--precision", "precisions", multiple=True, help="Precision to measure. Default: all CPU precisions.")
@click.option(
    "--starts", type=click.IntRange(min=1), default=10, show_default=True, help="Processes to start and time."
)
@click.option(
    "--calls",
    type=click.IntRange(min=20),
    default=10_000,
    show_default=True,
    help="Calls over which to measure memory.",
)
def main(bundle: Path, output: Path, precisions: tuple[str, ...], starts: int, calls: int) -> None:
    """Measure the variants one after another and write the result."""
    manifest = Manifest.read(bundle)
    results = {}
    for precision in precisions or [variant.precision for variant in manifest.variants_for("cpu")]:
        results[precision] = _measure(bundle, precision, starts, calls)
        click.echo(f"{precision}: {results[precision]}")
    what = f"a process that serves {manifest.source.get('family')}"
    write_result(output, {"what": what, "calls": calls, "variants": results})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
