"""List what this release supports, from the registries, as the README shows it."""

import click

from bert_export.targets import PRECISIONS
from bert_models import FAMILIES
from bert_runtime.tasks import TASKS

__all__ = ["support_table"]


def support_table() -> str:
    """Return families × tasks as a Markdown table, and the precisions that a bundle can have by target."""
    header = ["", *(f"`{family}`" for family in FAMILIES)]
    rows = [
        [f"`{task}`", *("✓" if task in family.head_weights else "–" for family in FAMILIES.values())] for task in TASKS
    ]
    lines = [header, ["---", *[":---:"] * len(FAMILIES)], *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    precisions = "; ".join(
        f"`--target {target}`: {', '.join(precision.upper() for precision in found)}"
        for target, found in PRECISIONS.items()
    )
    return f"{table}\n\n{precisions}."


if __name__ == "__main__":
    click.echo(support_table())
