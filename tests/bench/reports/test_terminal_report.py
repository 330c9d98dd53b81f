"""The report of `bert-export bench` in a terminal: tables that fit, and text elsewhere."""

import pytest

from bert_bench import Report, report_table
from bert_bench.cli import bench
from bert_bench.reports.text_table import report_blocks
from bert_export.cli import terminal


@pytest.mark.parametrize("columns", [80, 120])
def test_terminals_get_tables(
    toy_report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int
) -> None:
    monkeypatch.setattr(terminal, "is_terminal", lambda stream: True)
    monkeypatch.setattr(bench, "is_terminal", lambda stream: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    bench.print_report(toy_report)
    lines = capsys.readouterr().out.splitlines()
    tables = [block for block in report_blocks(toy_report) if block.rows]
    assert sum(line.lstrip().startswith("──") for line in lines) == len(tables)
    titles = {block.text for block in tables}
    assert max(len(line) for line in lines if line not in titles) <= columns
    for block in tables:
        for row in block.rows[1:]:
            assert any(line.split() == " ".join(row).split() for line in lines), row


def test_pipes_get_text(toy_report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    bench.print_report(toy_report)
    assert capsys.readouterr().out == f"{report_table(toy_report)}\n"
