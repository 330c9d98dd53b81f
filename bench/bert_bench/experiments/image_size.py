"""Measure the size of the server's image: run the installation of docs/deploy/Dockerfile in a folder, and add it up.

python -m bert_bench.experiments.image_size DIST --output FILE

The RUN instruction of the Dockerfile's first stage runs as it stands, with DIST's wheels, in a temporary folder; what
it leaves in /opt/bert-export is the one layer that the image adds to its base. Sizes are bytes of files, bytecode
included, by installed distribution.

Made bench/results/image-size.json.
"""

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from importlib.metadata import Distribution, distributions
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table

__all__ = ["install_command", "main", "results_table", "sizes_by_distribution"]

_ROOT = Path(__file__).parents[3]

_ENVIRONMENT, _BUILD = "/opt/bert-export", "/build"
"""Folders of the Dockerfile: the environment, and what the installation reads."""

_SHOWN_BYTES = 3e6
"""Smaller distributions share a row of the table."""


def install_command(dockerfile: str, environment: Path, build: Path) -> str:
    """Return the shell command of a Dockerfile's only RUN instruction, for other folders.

    Args:
        dockerfile: the text of the Dockerfile.
        environment: the folder to install into.
        build: the folder with wheels and constraints.
    """
    lines = [line for line in dockerfile.splitlines(keepends=True) if not line.startswith("#")]
    (command,) = re.findall(r"^RUN (.*)$", "".join(lines).replace("\\\n", ""), re.MULTILINE)
    folders = {_ENVIRONMENT: str(environment), _BUILD: str(build)}
    return re.sub("|".join(map(re.escape, folders)), lambda match: folders[match[0]], command)


def sizes_by_distribution(environment: Path) -> dict[str, int]:
    """Return the bytes of each installed distribution's files, and of all other files of an environment."""
    (site,) = environment.glob("lib/python3.*/site-packages")
    sizes = {found.name: _size(found) for found in distributions(path=[str(site)])}
    total = sum(path.stat().st_size for path in environment.rglob("*") if path.is_file() and not path.is_symlink())
    return dict(sorted(sizes.items(), key=lambda item: -item[1])) | {"(environment)": total - sum(sizes.values())}


def _size(distribution: Distribution) -> int:
    paths = [Path(str(distribution.locate_file(file))) for file in distribution.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())


def results_table(result: Path) -> str:
    """Return the sizes in a result file as a Markdown table."""
    values = json.loads(result.read_text("utf-8"))
    sizes: Mapping[str, int] = values["bytes"]
    shown = {name: size for name, size in sizes.items() if size >= _SHOWN_BYTES}
    others = [size for name, size in sizes.items() if name not in shown]
    rows = [[name, f"{size / 1e6:.0f}"] for name, size in shown.items()]
    rows.append([f"{len(others)} smaller ones", f"{sum(others) / 1e6:.0f}"])
    rows.append(["**all**", f"**{sum(sizes.values()) / 1e6:.0f}**"])
    return markdown_table(["installed", "MB"], rows)


@click.command(help=__doc__)
@click.argument("dist", type=click.Path(path_type=Path, exists=True, file_okay=False))
@path_option("--output", "Result file to write.")
def main(dist: Path, output: Path) -> None:
    """Install, measure, and write the result."""
    with TemporaryDirectory() as folder:
        environment, build = Path(folder, "environment"), Path(folder, "build")
        build.mkdir()
        for path in (*dist.glob("*.whl"), _ROOT / ".ci/constraints.txt"):
            shutil.copy(path, build)
        dockerfile = (_ROOT / "docs/deploy/Dockerfile").read_text(encoding="utf-8")
        subprocess.run(["sh", "-euc", install_command(dockerfile, environment, build)], check=True)
        sizes = sizes_by_distribution(environment)
        (library,) = environment.glob("lib/python3.*")
    write_result(output, {"what": "the image's layer", "python": library.name, "bytes": sizes})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
