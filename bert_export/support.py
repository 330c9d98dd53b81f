"""List what this release supports, from the registries: `python -m bert_export.support` prints the README's table."""

import click

from bert_export.targets import PRECISIONS
from bert_models import FAMILIES
from bert_runtime.tasks import TASKS

__all__ = ["support_table"]


def support_table() -> str:
    """Return tasks × families as a Markdown table; a cell lists the precisions that a bundle can have for the CPU."""
    precisions = ", ".join(f"`{precision}`" for precision in PRECISIONS["cpu"])
    header = ["task", *(f"`{family}`" for family in FAMILIES)]
    rows = [
        [f"`{task}`", *(precisions if task in family.head_weights else "–" for family in FAMILIES.values())]
        for task in TASKS
    ]
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


if __name__ == "__main__":
    click.echo(support_table())
