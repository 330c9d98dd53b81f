"""`bert-export evaluate`."""

from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bert_export.cli.help import ExampleCommand
from bert_export.cli.options import (
    bundle_argument,
    columns_option,
    inference_options,
    input_option,
    json_option,
    load_model,
    output_option,
)
from bert_export.cli.output import print_json
from bert_export.cli.param_types import PATH
from bert_export.cli.progress import count_progress
from bert_export.cli.terminal import print_table
from bert_export.cli.zero_shot_options import check_zero_shot_usage, with_candidate_labels, zero_shot_options
from bert_export.output_files import check_writable

if TYPE_CHECKING:
    from bert_runtime import Model, ZeroShotClassifier

__all__ = ["evaluate"]


@click.command(
    cls=ExampleCommand,
    short_help="Measure BUNDLE's task metric, or how well it retrieves.",
    examples=[
        "bert-export evaluate bundle dev.csv",
        "# A file with other column names, in FP32",
        "bert-export evaluate bundle dev.tsv --columns text=sentence,label=category \\",
        "    --precision fp32",
        "# Zero-shot: labels of your choice, of a bundle of natural language inference",
        "bert-export evaluate nli-bundle dev.jsonl --candidate-labels bank,travel",
        "# Retrieval: nDCG@10, MRR@10 and recall, of a folder in BEIR's format",
        "bert-export evaluate bundle scifact",
    ],
)
@bundle_argument
@click.argument("file", type=PATH, required=False)
@columns_option
@input_option("--corpus", type=PATH, help="Retrieval: documents, as JSONL with _id, text and optionally title.")
@input_option("--queries", type=PATH, help="Retrieval: queries, as JSONL with _id and text.")
@input_option("--qrels", type=PATH, help="Retrieval: relevant documents of the queries, in BEIR's or TREC's format.")
@input_option(
    "--first-stage", type=PATH, help="Retrieval: documents to rerank for each query, as --run-output of another model."
)
@inference_options
@zero_shot_options
@output_option("--run-output", type=PATH, help="Retrieval: file for the retrieved documents, in TREC's format.")
@json_option
def evaluate(
    bundle: Path,
    file: Path | None,
    columns: dict[str, str] | None,
    corpus: Path | None,
    queries: Path | None,
    qrels: Path | None,
    first_stage: Path | None,
    run_output: Path | None,
    candidate_labels: tuple[str, ...] | None,
    hypothesis_template: str | None,
    multi_label: bool | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Measure BUNDLE's task metric on a labelled FILE, or how well it retrieves documents.

    FILE may be a folder of BEIR, with corpus.jsonl, queries.jsonl and qrels/test.tsv; --corpus, --queries and --qrels
    name such files anywhere. The report then has nDCG, MRR and recall of an exact search.

    Options of tasks, such as --top-k, default to the bundle's settings.
    """
    retrieval_files = (corpus, queries, qrels)
    _check_usage(file, retrieval_files, first_stage or run_output)
    zero_shot = candidate_labels, hypothesis_template, multi_label
    check_zero_shot_usage(*zero_shot, has_pair=False, top_k=options.get("top_k"))
    is_labelled = file is not None and not file.is_dir()
    if candidate_labels is not None and not is_labelled:
        raise click.UsageError("--candidate-labels need a FILE of texts with labels")
    model = load_model(bundle, **options)
    if file is not None and is_labelled:
        counts, metrics = _evaluate_file(with_candidate_labels(model, *zero_shot), file, columns)
    else:
        counts, metrics = _evaluate_retrieval(model, file, retrieval_files, first_stage, run_output)
    report = {**_precisions(model), **counts, **metrics}
    if as_json:
        print_json(report)
    else:
        print_table(report.items())


def _precisions(model: "Model") -> dict[str, str]:
    """Return the precision of what ran: of a cascade, of both models."""
    from bert_runtime.cascade import Cascade

    if isinstance(model, Cascade):
        return {"small": _precisions(model.small)["precision"], "large": _precisions(model.large)["precision"]}
    assert model.variant is not None, "of a bundle"
    return {"precision": model.variant.precision}


def _check_usage(file: Path | None, retrieval_files: tuple[Path | None, ...], run: Path | None) -> None:
    """Raise `click.UsageError` for arguments that do not say what to evaluate on, or say it twice."""
    given = [path for path in retrieval_files if path is not None]
    if file is None and len(given) < len(retrieval_files):
        raise click.UsageError("expected FILE, or --corpus, --queries and --qrels together")
    if file is not None and given:
        raise click.UsageError("give either FILE or --corpus, --queries and --qrels, not both")
    if run is not None and file is not None and not file.is_dir():
        raise click.UsageError(
            "--first-stage and --run-output are for retrieval: give a folder, or --corpus, --queries and --qrels"
        )


def _evaluate_file(
    model: "Model | ZeroShotClassifier", file: Path, columns: dict[str, str] | None
) -> tuple[dict[str, int], dict[str, float]]:
    from bert_runtime.evaluation import evaluate as evaluate_model
    from bert_runtime.records import read_records

    records = read_records(file, columns)
    with count_progress("evaluating", len(records)) as advance:
        return {"examples": len(records)}, evaluate_model(model, records, progress=advance)


def _evaluate_retrieval(
    model: "Model",
    folder: Path | None,
    files: tuple[Path | None, ...],
    first_stage: Path | None,
    run_output: Path | None,
) -> tuple[dict[str, int], dict[str, float]]:
    from bert_runtime.records.retrieval import (
        check_run_ids,
        read_retrieval_data,
        read_retrieval_folder,
        read_run,
        write_run,
    )
    from bert_runtime.retrieval import retrieve, score_run

    if run_output is not None:
        check_writable(run_output)
    paths = [path for path in files if path is not None]
    data = read_retrieval_data(*paths) if folder is None else read_retrieval_folder(folder)
    if run_output is not None:
        check_run_ids(run_output, chain(data.queries, data.corpus if first_stage is None else ()))
    candidates = None if first_stage is None else read_run(first_stage)
    total = len(data.queries) + (len(data.corpus) if candidates is None else 0)
    with count_progress("retrieving", total) as advance:
        run = retrieve(model, data, candidates=candidates, progress=advance)
    metrics = score_run(run, data)
    if run_output is not None:
        write_run(run_output, run)
    counts = {"queries": len(data.queries), "documents": len(data.corpus)}
    missing = {"missing_documents": data.num_missing_documents} if data.num_missing_documents else {}
    return {**counts, **missing}, metrics
