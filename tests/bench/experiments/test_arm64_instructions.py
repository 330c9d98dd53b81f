"""Instruction counts of the arm64 kernels' inner loops."""

from pathlib import Path

from bert_bench.experiments.arm64_instructions import inner_loop, instruction_kinds, results_table

RESULT = Path(__file__).parents[3] / "bench" / "results" / "arm64-instructions.json"

ASSEMBLY = """
tile:
\tcmp\tx3, #4
\tb.hs\t.LBB0_2
.LBB0_2:
\tmovi\tv0.2d, #0
.LBB0_3:                                // =>This Inner Loop Header: Depth=1
\tldp\tq8, q9, [x2]
\tzip1\tv1.2d, v2.2d, v3.2d
\tsdot\tv23.4s, v8.16b, v24.4b[0]
\tsmlal2\tv23.4s, v8.8h, v24.h[1]
\tadd\tx9, x9, #16
\tcmp\tx10, x3
\tb.ls\t.LBB0_3
.LBB0_4:
\tldr\tw8, [x0]
\tb.ne\t.LBB0_4
\tret
"""


def test_the_longest_loop_is_counted_by_kind() -> None:
    names = inner_loop(ASSEMBLY)
    assert names == ["ldp", "zip1", "sdot", "smlal2", "add", "cmp", "b"]
    assert instruction_kinds(names) == {"products": 2, "loads": 1, "stores": 0, "shuffles": 1, "others": 3}


def test_accumulators_of_every_library_stay_in_registers() -> None:
    """A loop that stores would have spilled them."""
    lines = results_table(RESULT).splitlines()
    stores = [cell.strip() for cell in lines[0].split("|")].index("stores")
    assert {line.split("|")[stores].strip() for line in lines[2:]} == {"0"}
