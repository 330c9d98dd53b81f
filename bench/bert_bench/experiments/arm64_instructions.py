"""Count the instructions of the arm64 kernels' inner loops: an estimate, since no arm64 machine has timed them.

python -m bert_bench.experiments.arm64_instructions --output FILE

zig c++ (the package `ziglang`, as for the wheel) compiles the GEMM microkernel of a full tile for each instruction set;
what it makes of the loop over K is counted in its assembly. A processor with two vector units spends at least half a
cycle on each product and on each shuffle; loads run beside them.

Made bench/results/arm64-instructions.json.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from bert_bench.experiments.harness import path_option, write_result
from bert_bench.reports.markdown_table import markdown_table

__all__ = ["inner_loop", "instruction_kinds", "main", "results_table"]

_NATIVE = Path(__file__).parents[3] / "runtime" / "native"
_COMPILER = (sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu.2.28")

_TILES = (
    ("kernels-neon.so", "DotU8S8", "uint8 × int8, widened to int16"),
    ("kernels-dotprod.so", "DotU8S8", "uint8 × int8"),
    ("kernels-i8mm.so", "DotU8S8", "uint8 × int8"),
    ("kernels-neon.so", "DotS16", "int16 × int16 (attention)"),
    ("kernels-neon.so", "DotF32", "float32 × float32"),
    ("kernels-i8mmbf16.so", "DotBF16", "bfloat16 × bfloat16"),
)
"""Library, dot product and its title."""

_ROWS, _COLUMNS, _BYTES = 8, 8, 16
"""A tile, and the bytes of each row of A that one pass of the loop multiplies."""
_ELEMENT_BYTES = {"kernels-neon.so DotU8S8": 2, "DotU8S8": 1, "DotS16": 2, "DotF32": 4, "DotBF16": 2}

_SOURCE = """
#include "gemm_microkernel.h"
using namespace bert;
extern "C" void tile(const uint8_t* a, size_t stride, const uint8_t* panel, size_t steps, int32_t* y) {
  I32 acc[kMaxTileRows][2];
  zero_accumulators(acc);
  gemm_microkernel<DOT, kMaxTileRows>(a, stride, panel, steps, acc);
  for (int r = 0; r < kMaxTileRows; ++r)
    for (int half = 0; half < 2; ++half) store_i32(y + kPanelColumns * r + kLanes * half, acc[r][half]);
}
"""

_KINDS = {
    "products": r"(sdot|usmmla|bfmmla|fmla|smlal2?)$",
    "loads": r"ld",
    "stores": r"st",
    "shuffles": r"(zip|uzp|trn|sshll|ushll|dup|ext|tbl|eor|mov)",
}
"""Kinds of instructions, by the start of their names; all others are of addresses and of the loop."""


def inner_loop(assembly: str) -> list[str]:
    """Return the names of the instructions of the longest loop that has no label inside."""
    parts = re.split(r"^(\.LBB\w+):", assembly, flags=re.MULTILINE)
    loops = []
    for label, body in zip(parts[1::2], parts[2::2], strict=True):
        if branch := re.search(rf"^\s+b\.\w+\s+{re.escape(label)}$", body, re.MULTILINE):
            loops.append(re.findall(r"^\s+([a-z]\w*)", body[: branch.end()], re.MULTILINE))
    return max(loops, key=len)


def instruction_kinds(names: list[str]) -> dict[str, int]:
    """Return how many instructions there are of each kind."""
    kinds = Counter(
        next((kind for kind, pattern in _KINDS.items() if re.match(pattern, name)), "others") for name in names
    )
    return {kind: kinds[kind] for kind in (*_KINDS, "others")}


def _assembly(library: str, dot: str, folder: Path) -> str:
    """Compile the microkernel of a full tile; return the compiler's assembly."""
    sys.path.insert(0, str(_NATIVE))
    hook = import_module("hatch_build")
    source, target = folder / "tile.cc", folder / "tile.s"
    source.write_text(_SOURCE, encoding="ascii")
    flags = hook.spell_flags(list(_COMPILER), hook.compile_flags(library, source))
    command = [*_COMPILER, *flags, "-g0", f"-DDOT={dot}", f"-I{_NATIVE}", "-S", str(source), "-o", str(target)]
    subprocess.run(command, check=True, capture_output=True)
    return target.read_text(encoding="utf-8")


def _count(library: str, dot: str, title: str) -> dict[str, object]:
    with TemporaryDirectory() as folder:
        counts = instruction_kinds(inner_loop(_assembly(library, dot, Path(folder))))
    element_bytes = _ELEMENT_BYTES.get(f"{library} {dot}", _ELEMENT_BYTES[dot])
    multiply_adds = _ROWS * _COLUMNS * _BYTES // element_bytes
    return {"library": library, "matmul": title, "multiply_adds": multiply_adds, "instructions": counts}


def results_table(result: Path) -> str:
    """Return the counts in a result file as a Markdown table."""
    rows = []
    for tile in json.loads(result.read_text("utf-8"))["tiles"]:
        counts: Mapping[str, int] = tile["instructions"]
        total = sum(counts.values())
        per_instruction = f"{tile['multiply_adds'] / total:.1f}"
        rows.append([f"`{tile['library']}`", tile["matmul"], str(tile["multiply_adds"]), *map(str, counts.values()),
                     str(total), per_instruction])  # fmt: skip
    header = ["library", "matmul", "multiply-adds", *_KINDS, "others", "all", "multiply-adds per instruction"]
    return markdown_table(header, rows)


@click.command(help=__doc__)
@path_option("--output", "Result file to write.")
def main(output: Path) -> None:
    """Compile, count, and write the result."""
    tiles = [_count(*tile) for tile in _TILES]
    write_result(output, {"what": "instructions of one pass of the loop over K, tile of 8 × 8", "tiles": tiles})
    click.echo(results_table(output))


if __name__ == "__main__":
    main()
