"""The catalog of bench/results: machines, pages, and what each result is.

Numbers are in the JSON files; the catalog says what a script cannot know, such as whether a result is superseded.
"""

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from bert_bench.errors import DocumentationError
from bert_bench.reports.write_report import RESULT
from bert_runtime.bundle.schema import from_plain
from bert_runtime.errors import BertError

__all__ = ["CATALOG", "Catalog", "Machine", "Picture", "PicturePanel", "Result", "Topic", "read_catalog"]

CATALOG = "catalog.toml"
"""The catalog's name in bench/results."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A machine, which has a page of its own."""

    title: str
    cpu_model: str
    """CPU family, model and stepping, as in the JSON files."""
    details: str


@dataclass(frozen=True, kw_only=True)
class Topic:
    """A page of experiments."""

    title: str
    details: str


@dataclass(frozen=True, kw_only=True)
class PicturePanel:
    """A panel of README's picture."""

    result: str
    case: str
    title: str


@dataclass(frozen=True, kw_only=True)
class Picture:
    """README's picture."""

    title: str
    subtitle: str
    panels: tuple[PicturePanel, ...]


@dataclass(frozen=True, kw_only=True)
class Result:
    """A comparison (a folder with a report), or the files of an experiment."""

    page: str
    """Name of the machine or of the topic."""
    commit: str
    """Commit that recorded it, for files that do not name the measured commit."""
    title: str | None = None
    """Title of an experiment; a comparison has that of its report."""
    table: str | None = None
    """Generator of an experiment's table."""
    variant: str | None = None
    """Property that sets a comparison apart from others of the same model."""
    notes: str = ""
    timed: bool = True
    """Whether the times of a comparison can be trusted."""
    superseded: str | None = None
    """Why it no longer describes the code."""


@dataclass(frozen=True, kw_only=True)
class Catalog:
    """The catalog's contents."""

    speed_table: tuple[str, ...]
    """Results of README's table, in order."""
    picture: Picture
    machines: Mapping[str, Machine]
    topics: Mapping[str, Topic]
    results: Mapping[str, Result]
    """By path below bench/results."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """Today's names of modules that commands in result files call by an older one."""


def read_catalog(results: Path) -> Catalog:
    """Read bench/results/catalog.toml and compare it with the files there.

    Raises:
        DocumentationError: it cannot be read, a key is unknown or missing, or it does not agree with the files. All
            disagreements are named.
    """
    path = results / CATALOG
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        catalog = from_plain(Catalog, values, "catalog")
    except (OSError, ValueError, BertError) as error:
        raise DocumentationError(f"{path}: {error}") from None
    if problems := [*_unknown_keys(values), *_disagreements(catalog, results)]:
        raise DocumentationError(f"{path}: {'; '.join(problems)}")
    return catalog


def _unknown_keys(values: Mapping[str, Any]) -> list[str]:
    """Return the keys that the catalog must not have."""
    tables: dict[str, tuple[Mapping[str, Any], type]] = {"": (values, Catalog)}
    for key, kind in (("machines", Machine), ("topics", Topic), ("results", Result)):
        tables |= {f"{key}.{name}.": (table, kind) for name, table in values[key].items()}
    return [
        f"{prefix}{key}: unknown key"
        for prefix, (table, kind) in tables.items()
        for key in table.keys() - {item.name for item in fields(kind)}
    ]


def _disagreements(catalog: Catalog, results: Path) -> list[str]:
    """Return what is wrong with the catalog's references, none if all is well."""
    problems = [f"results.{name}: no such file or folder" for name in catalog.results if not (results / name).exists()]
    found = {path.relative_to(results).as_posix() for path in results.rglob("*.json")}
    covered = {name for name in found if any(name == key or name.startswith(f"{key}/") for key in catalog.results)}
    problems += [f"results: {name} is missing" for name in sorted(found - covered)]
    for name, result in catalog.results.items():
        comparison = (results / name / RESULT).is_file()
        pages = catalog.machines if comparison else catalog.topics
        if result.page not in pages:
            problems.append(f"results.{name}: expected page to be one of {', '.join(pages)}, found {result.page!r}")
        elif comparison:
            model = json.loads((results / name / RESULT).read_text("utf-8"))["conditions"]["machine"].get("cpu_model")
            if model != catalog.machines[result.page].cpu_model:
                problems.append(f"results.{name}: measured on a CPU {model}, which is not that of {result.page}")
        elif not (result.title and result.table):
            problems.append(f"results.{name}: expected a title and a table")
    references = [*catalog.speed_table, *(panel.result for panel in catalog.picture.panels)]
    problems += [f"unknown result {name}" for name in references if name not in catalog.results]
    return problems
