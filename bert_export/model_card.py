"""Write the model card of a bundle: `README.md` with the metadata of the Hugging Face hub."""

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from bert_runtime.bundle.manifest import Manifest, Variant

__all__ = ["export_command", "model_card"]

_PIPELINE_TAGS = {
    "text-classification": "text-classification",
    "token-classification": "token-classification",
    "question-answering": "question-answering",
    "fill-mask": "fill-mask",
    "sentence-embedding": "sentence-similarity",
    "sparse-embedding": "feature-extraction",
    "feature-extraction": "feature-extraction",
}
"""The hub's names of tasks; it has none for the others."""

_MODEL_CARD = """\
---
{metadata}---

# {title}

A {family} model for {task}, as a verified ONNX bundle of bert-export. It runs
without PyTorch. It reads up to {max_tokens} tokens.

## Variants

{variants}

Latencies are medians on {cpu}, {cores} cores, by batch size × tokens. The default is {default}: {reason}.

## How to load it

```python
from bert_runtime import load

model = load("{folder}")
```

That needs bert-export with its extra `cpu`, and no PyTorch.

## How it was made

```sh
{command}
```

The checkpoint's weights have the SHA-256 `{sha256}`. Versions: {versions}. `bundle.json` holds every measurement, and
`bert-export verify` repeats the self-tests.
"""


def model_card(
    manifest: Manifest, inherited: Mapping[str, Any], command: str, folder: str, labelled: str | None = None
) -> str:
    """Return the text of a bundle's model card.

    Args:
        manifest: the bundle's manifest.
        inherited: metadata of the checkpoint, see `read_source_card`.
        command: the command that makes the bundle.
        folder: name of the bundle's folder.
        labelled: name of the labelled file that the metrics were measured on, if there was one.
    """
    metadata = yaml.safe_dump(_metadata(manifest, inherited, folder, labelled), sort_keys=False, allow_unicode=True)
    return _MODEL_CARD.format(
        metadata=metadata,
        title=_one_line(folder),
        family=manifest.source["family"],
        task=manifest.task.name,
        max_tokens=manifest.max_tokens,
        variants=_variants_table(manifest.variants),
        cpu=manifest.machine.get("cpu"),
        cores=manifest.machine.get("cores"),
        default=manifest.default_precision,
        reason=manifest.default_reason,
        folder=_one_line(folder).replace('"', '\\"'),
        command=_one_line(command),
        sha256=manifest.source["sha256"],
        versions=", ".join(f"{tool} {version}" for tool, version in manifest.versions.items()),
    )


def export_command(
    checkpoint: str | Path,
    bundle: Path,
    columns: Mapping[str, str] | None,
    decoding: Mapping[str, Any] | None,
    **options: Any,
) -> str:
    """Return the command that makes a bundle; folders and files by their names alone.

    Args:
        checkpoint: the checkpoint, as it was named.
        bundle: the bundle.
        columns: column names by field.
        decoding: decoding options that become the bundle's defaults.
        options: values of the command's other options by name; those that are `None` are left out, those that
            are `True` are flags.
    """
    name = str(checkpoint)
    words = ["bert-export", "export", Path(name).name if Path(name).is_dir() else name, bundle.name]
    for option, value in options.items():
        if option in ("evaluate", "calibrate") and value is not None:
            value = Path(value).name
        for item in value if isinstance(value, list | tuple) else [value]:
            words += [] if item is None else [_flag(option)] if item is True else [_flag(option), str(item)]
    if columns:
        words += ["--columns", ",".join(f"{field}={column}" for field, column in columns.items())]
    for option, value in (decoding or {}).items():
        if isinstance(value, bool):
            off = "--always-answer" if option == "no_answer" else _flag(f"no_{option}")
            words.append(_flag(option) if value else off)
        else:
            words += [_flag(option), ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)]
    return shlex.join(words)


def _flag(option: str) -> str:
    """Return an option as the command line has it."""
    return f"--{option.replace('_', '-')}"


def _metadata(manifest: Manifest, inherited: Mapping[str, Any], folder: str, labelled: str | None) -> dict[str, Any]:
    """Return the hub's metadata; what is not known is left out."""
    pipeline_tag = _PIPELINE_TAGS.get(manifest.task.name)
    precisions = {variant.precision: None for variant in manifest.variants}
    metadata: dict[str, Any] = {
        **inherited,
        "library_name": "bert-export",
        "tags": ["onnx", "bert-export", manifest.source["family"], *precisions],
    }
    if pipeline_tag is not None:
        metadata["pipeline_tag"] = pipeline_tag
    if labelled is not None:
        result = _result(manifest, pipeline_tag or manifest.task.name, labelled)
        metadata["model-index"] = [{"name": folder, "results": [result]}]
    return metadata


def _result(manifest: Manifest, task_type: str, labelled: str) -> dict[str, Any]:
    """Return the task metrics that the export measured on a labelled file, in the form of a model index."""
    metric = manifest.task.deciding_metric(manifest.variants[0].metrics)
    metrics = [
        {"type": metric, "value": variant.metrics[metric], "name": f"{metric} ({variant.title})"}
        for variant in manifest.variants
        if variant.metrics
    ]
    return {"task": {"type": task_type}, "dataset": {"type": labelled, "name": labelled}, "metrics": metrics}


def _variants_table(variants: tuple[Variant, ...]) -> str:
    """Return a table of the variants with size, fidelity, metrics and latency."""
    rows = [["variant", "size", "difference from FP32", "metrics", "latency"], ["---"] * 5]
    for variant in variants:
        latency = ", ".join(f"{value:.2f} ms at {shape}" for shape, value in variant.latency_ms.items())
        measured = (f"{variant.size_bytes / 1e6:.1f} MB", _numbers(variant.drift), _numbers(variant.metrics), latency)
        rows.append([variant.title, *(text or "–" for text in measured)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _numbers(values: Mapping[str, Any]) -> str:
    """Return measurements as text."""
    return ", ".join(f"{key} {value:.4g}" for key, value in values.items() if isinstance(value, int | float))


def _one_line(text: str) -> str:
    """Return a text without line breaks or fences, which would end the block that it is in."""
    return re.sub(r"\s+", " ", text).replace("```", "'''")
