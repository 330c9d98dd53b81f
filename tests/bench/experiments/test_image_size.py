"""The size of the server's image."""

import json
from pathlib import Path

from bert_bench.experiments.image_size import install_command, results_table, sizes_by_distribution

ROOT = Path(__file__).parents[3]


def test_the_installation_of_the_dockerfile_runs_in_other_folders() -> None:
    dockerfile = (ROOT / "docs/deploy/Dockerfile").read_text(encoding="utf-8")
    command = install_command(dockerfile, Path("/tmp/environment"), Path("/tmp/wheels"))
    assert command.startswith("python3 -m venv --without-pip /tmp/environment && ")
    assert "--find-links /tmp/wheels" in command
    assert "--constraint /tmp/wheels/constraints.txt" in command
    assert "/opt" not in command
    assert "\n" not in command


def test_files_count_for_their_distribution(tmp_path: Path) -> None:
    site = tmp_path / "lib/python3.12/site-packages"
    for name, size in (("large", 300), ("small", 20)):
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        (site / f"{name}.py").write_bytes(b"#" * size)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n", encoding="utf-8")
        (info / "RECORD").write_text(f"{name}.py,,\ngone.py,,\n", encoding="utf-8")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/program").write_bytes(b"1234567")
    sizes = sizes_by_distribution(tmp_path)
    others = sum(path.stat().st_size for path in site.rglob("*.dist-info/*"))
    assert list(sizes.items()) == [("large", 300), ("small", 20), ("(environment)", 7 + others)]


def test_small_ones_share_a_row(tmp_path: Path) -> None:
    result = tmp_path / "result.json"
    result.write_text(json.dumps({"bytes": {"onnxruntime": 60_400_000, "a": 2_000_000, "b": 500_000}}), "utf-8")
    rows = [line.replace(" ", "") for line in results_table(result).splitlines()]
    assert rows[2:] == ["|onnxruntime|60|", "|2smallerones|2|", "|**all**|**63**|"]
