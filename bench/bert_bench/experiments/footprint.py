"""What a process that serves a bundle takes: seconds until it answers, and memory over thousands of calls.

python -m bert_bench.experiments.footprint BUNDLE --output FILE [--precision P]...

Each start is a new Python that imports `bert_runtime`, loads the bundle and answers one text; its seconds count from
before the process exists. Memory is the resident set of one such process, which then answers calls of one to sixteen
texts of 1 to 120 words, drawn at random.
"""

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import click

from bert_bench.experiments.harness import write_result
from bert_runtime import Manifest

__all__ = ["main"]

_ANSWER = """
import sys
from bert_runtime import load
model = load(sys.argv[1], precision=sys.argv[2])
model("where is my card?")
"""

_SERVE = (
    _ANSWER
    + """
import json, random
import psutil
process, generator = psutil.Process(), random.Random(0)
held = [process.memory_info().rss]
every, calls = int(sys.argv[3]), int(sys.argv[4])
words = "the of card account payment please where when has not arrived yet top up transfer refund".split()
def text():
    return " ".join(generator.choices(words, k=generator.randint(1, 120)))
for number in range(1, calls + 1):
    count = generator.randint(1, 16) if number % 10 == 0 else 1
    model(text() if count == 1 else [text() for _ in range(count)])
    if number % every == 0:
        held.append(process.memory_info().rss)
print(json.dumps(held))
"""
)

_POINTS = 20
"""How often memory is looked at."""


def _started(bundle: Path, precision: str, starts: int) -> list[float]:
    """Seconds from before the process to after its first answer, of each start."""
    seconds = []
    for _ in range(starts):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", _ANSWER, str(bundle), precision], check=True)
        seconds.append(time.perf_counter() - begin)
    return seconds


def _held(bundle: Path, precision: str, calls: int) -> list[int]:
    """Resident bytes after the first answer and then at even distances."""
    arguments = [str(bundle), precision, str(max(1, calls // _POINTS)), str(calls)]
    found = subprocess.run([sys.executable, "-c", _SERVE, *arguments], check=True, capture_output=True, text=True)
    return [int(each) for each in json.loads(found.stdout)]


def _measured(bundle: Path, precision: str, starts: int, calls: int) -> dict[str, Any]:
    seconds, held = _started(bundle, precision, starts), _held(bundle, precision, calls)
    megabytes = [round(each / 1e6, 1) for each in held]
    later = megabytes[2:]  # the first tenth meets the largest shapes, and opens the session of many inputs
    return {
        "first_answer_s": {"median": round(median(seconds), 3), "all": [round(each, 3) for each in seconds]},
        "resident_mb": {"first_answer": megabytes[0], "over_calls": megabytes[1:]},
        "growth_after_a_tenth": round(max(later) / later[0] - 1, 4),
    }


@click.command(help=__doc__)
@click.argument("bundle", type=click.Path(path_type=Path, exists=True))
@click.option("--output", type=click.Path(path_type=Path), required=True)
@click.option("--precision", "precisions", multiple=True, help="By default all for the CPU.")
@click.option("--starts", type=click.IntRange(min=1), default=10, show_default=True)
@click.option("--calls", type=click.IntRange(min=20), default=10_000, show_default=True)
def main(bundle: Path, output: Path, precisions: tuple[str, ...], starts: int, calls: int) -> None:
    """Measures every variant, one after the other."""
    manifest = Manifest.read(bundle)
    found = {}
    for precision in precisions or [each.precision for each in manifest.variants_for("cpu")]:
        found[precision] = _measured(bundle, precision, starts, calls)
        click.echo(f"{precision}: {found[precision]}")
    write_result(
        output, {"what": f"a process that serves {manifest.source.get('family')}", "calls": calls, "variants": found}
    )


if __name__ == "__main__":
    main()
