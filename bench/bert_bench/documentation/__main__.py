"""Fill the generated blocks of README.md and docs, and write the pages of results.

python -m bert_bench.documentation [--check]

A block is what lies between the lines `<!-- generated: NAME ARGUMENTS -->` and `<!-- /generated -->` of a Markdown
file. Its tables come from the registries and from the JSON files in bench/results. With --check nothing is written;
the exit code is 1 if a file would change.
"""

from pathlib import Path

import click

from bert_bench.documentation.pages import find_updates
from bert_export.cli.param_types import PATH
from bert_runtime.errors import BertError

__all__ = ["main"]


@click.command(help=__doc__)
@click.option("--check", is_flag=True, help="Write nothing; fail if a file would change.")
@click.option("--root", type=PATH, default=Path(), help="Folder of the project's sources. Default: the current one.")
def main(check: bool, root: Path) -> None:
    """Update the files, or list those that are out of date."""
    try:
        update = find_updates(root)
        for path in update.paths:
            click.echo(f"{path}: {'out of date' if check else 'updated'}")
        if not check:
            update.apply()
    except BertError as error:
        raise click.ClickException(str(error)) from None
    if check and update.paths:
        raise click.ClickException("generated files are out of date; run `python -m bert_bench.documentation`")


if __name__ == "__main__":
    main()
