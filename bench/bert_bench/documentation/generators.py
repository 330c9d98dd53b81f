"""Contents of generated blocks: by name, the function that makes the block's Markdown.

Every function takes the folder of results and the block's arguments, and imports what it needs itself: the tables of
training experiments need PyTorch, those of comparisons do not.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path

from bert_bench.documentation.speed_table import speed_table
from bert_bench.documentation.speedups import speedup_table
from bert_bench.errors import BenchError, DocumentationError
from bert_bench.reports.markdown import report_markdown
from bert_bench.reports.read_report import read_report
from bert_bench.reports.write_report import RESULT

__all__ = ["GENERATORS", "Generator", "generate"]

Generator = Callable[[Path, Sequence[str]], str]


def generate(results: Path, name: str, arguments: Sequence[str]) -> str:
    """Return the Markdown of a generated block.

    Args:
        results: the folder bench/results.
        name: a key of `GENERATORS`.
        arguments: the block's arguments.

    Raises:
        DocumentationError: the name is unknown, an argument is missing or too many, or a result cannot be read.
    """
    if name not in GENERATORS:
        known = ", ".join(GENERATORS)
        raise DocumentationError(f"expected a generated block named one of {known}; found {name!r}")
    try:
        return GENERATORS[name](results, arguments)
    except DocumentationError:
        raise
    except (BenchError, OSError, ValueError, KeyError) as error:
        raise DocumentationError(f"block {name}: {type(error).__name__}: {error}") from None


def _support_table(results: Path, arguments: Sequence[str]) -> str:
    """Return the table of tasks and families."""
    from bert_export.support import support_table

    _check_count("support-table", arguments, at_most=0)
    return support_table()


def _speed_table(results: Path, arguments: Sequence[str]) -> str:
    """Return README's table."""
    _check_count("speed-table", arguments, at_most=0)
    return speed_table(results)


def _speedups(results: Path, arguments: Sequence[str]) -> str:
    """Return the summary of a comparison's speed-ups."""
    if len(arguments) != 1:
        raise DocumentationError(f"block speedups: expected a folder of bench/results, found {' '.join(arguments)!r}")
    return speedup_table(read_report(_existing(results, f"{arguments[0]}/{RESULT}")))


def _experiment_table(results: Path, arguments: Sequence[str], *, experiment: str, default: str) -> str:
    """Return the `results_table` of an experiment, of its default result or of the one that the argument names."""
    _check_count(experiment.replace("_", "-"), arguments, at_most=1)
    path = _existing(results, arguments[0] if arguments else default)
    table: str = import_module(f"bert_bench.experiments.{experiment}").results_table(path)
    return table


def _comparison(results: Path, arguments: Sequence[str]) -> str:
    """Return the report of a comparison, or those of its sections whose headings start as the arguments say."""
    if not arguments:
        raise DocumentationError("block comparison: expected the name of a folder of bench/results, found no argument")
    folder, *wanted = arguments
    markdown = report_markdown(read_report(_existing(results, f"{folder}/{RESULT}")))
    sections = dict(_section(text) for text in f"\n{markdown}".split("\n## ")[1:])
    if not wanted:
        return markdown.partition("\n")[2]
    chosen = []
    for start in wanted:
        found = [text for title, text in sections.items() if title.lower().startswith(start.lower())]
        if not found:
            titles = "; ".join(sections)
            raise DocumentationError(f"block comparison: expected the start of a heading ({titles}); found {start!r}")
        chosen += found
    return "\n\n".join(chosen)


def _section(text: str) -> tuple[str, str]:
    """Return the title and the body of a section."""
    title, _, body = text.partition("\n")
    return title, body.strip()


def _existing(results: Path, name: str) -> Path:
    path = results / name
    if not path.exists():
        raise DocumentationError(f"{path}: expected a result there, found nothing; name one of bench/results")
    return path


def _check_count(name: str, arguments: Sequence[str], *, at_most: int) -> None:
    if len(arguments) > at_most:
        raise DocumentationError(f"block {name}: expected at most {at_most} arguments, found {' '.join(arguments)}")


_EXPERIMENTS = {
    "fine_tuning": "fine-tunes",
    "minilm_fidelity": "minilm-fidelity.json",
    "sts_fidelity": "sts-mpnet.json",
    "retrieval": "retrieval-squad.json",
    "sparse_embedding": "sparse-embedding.json",
    "fine_tuning_vs_transformers": "fine-tuning-peers",
    "pretraining": "pretraining",
    "training_speed": "training-speed.json",
    "banking77": "banking77.json",
    "bf16": "bf16.json",
    "quantization": "quantization/sst2.json",
    "distillation": "distillation.json",
    "compression": "compression",
    "token_pruning": "token-pruning.json",
    "cascade": "cascade",
    "footprint": "footprint-minilm-xeon.json",
    "image_size": "image-size.json",
    "operator_profile": "operators-base.json",
    "fusions": "fusions.json",
    "packed_rows": "packed-rows-minilm.json",
    "whole_batches": "whole-batches-squad.json",
    "arm64_instructions": "arm64-instructions.json",
    "ray_batch": "ray-batch.json",
    "serving": "serving-zen5.json",
    "rerank_speed": "rerank-speed.json",
    "rerank_training": "rerank-training-triples.json",
    "embedding_training": "embedding-training.json",
    "sparse_training": "sparse-training.json",
    "zero_shot": "zero-shot.json",
    "deberta": "deberta-base.json",
    "small_encoders": "small-encoders",
    "modernbert": "modernbert-base.json",
}
"""Experiments that have a `results_table`, with their results in bench/results."""

GENERATORS: Mapping[str, Generator] = {
    "support-table": _support_table,
    "speed-table": _speed_table,
    "speedups": _speedups,
    "comparison": _comparison,
    **{
        name.replace("_", "-"): partial(_experiment_table, experiment=name, default=default)
        for name, default in _EXPERIMENTS.items()
    },
}
"""By block name."""
