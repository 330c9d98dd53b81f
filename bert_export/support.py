"""List what this release supports, from the registries, as the README shows it."""

from collections.abc import Collection, Iterable

import click

from bert_export.targets import PRECISIONS_BY_TARGET, cpu_only_parts
from bert_models import FAMILIES
from bert_models.families import Family
from bert_runtime.tasks import TASKS

__all__ = ["support_table"]


def support_table() -> str:
    """Return the families, and those that each task and each target has, as Markdown.

    Tasks that the same families have share a row.
    """
    tasks: dict[tuple[str, ...], list[str]] = {}
    for task in TASKS:
        found = tuple(name for name, family in FAMILIES.items() if task in family.head_weights)
        tasks.setdefault(found, []).append(task)
    rows = [f"| {_code(names)} | {_families(found)} |" for found, names in tasks.items()]
    table = "\n".join(("| task | families |", "| --- | --- |", *rows))
    return f"Families, by `model_type`: {_code(FAMILIES)}.\n\n{table}\n\nTargets: {_targets()}."


def _targets() -> str:
    """Return the precisions and families of each target."""
    on_gpu = _families([name for name, family in FAMILIES.items() if not _is_cpu_only(family)])
    targets: dict[tuple[tuple[str, ...], str], list[str]] = {}
    for target, precisions in PRECISIONS_BY_TARGET.items():
        targets.setdefault((precisions, "all" if target == "cpu" else on_gpu), []).append(target)
    return "; ".join(
        f"{' and '.join(f'`{name}`' for name in names)} ({_code(precisions)}): {families}"
        for (precisions, families), names in targets.items()
    )


def _is_cpu_only(family: Family) -> bool:
    """Return whether a family's first size has parts that no GPU graph has."""
    return bool(cpu_only_parts(family.preset(next(iter(family.sizes)))))


def _families(found: Collection[str]) -> str:
    """Return names of families, or those that are missing if they are fewer."""
    missing = [name for name in FAMILIES if name not in found]
    if not missing:
        return "all"
    return f"all but {_code(missing)}" if len(missing) < len(found) else _code(found)


def _code(names: Iterable[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    click.echo(support_table())
