"""Generated blocks of Markdown files."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from bert_bench.documentation.blocks import fill_blocks
from bert_bench.documentation.generators import generate
from bert_bench.errors import DocumentationError

PAGE = Path("page.md")


def echo(name: str, arguments: Sequence[str]) -> str:
    return f"{name}: {', '.join(arguments)}\n\nend"


def test_a_block_is_replaced_and_the_rest_kept() -> None:
    text = "a\n<!-- generated: table 'one two' 3 -->\nold\n<!-- /generated -->\nb\n"
    filled = "a\n<!-- generated: table 'one two' 3 -->\n\ntable: one two, 3\n\nend\n\n<!-- /generated -->\nb\n"
    assert fill_blocks(text, PAGE, echo) == filled
    assert fill_blocks(filled, PAGE, echo) == filled


def test_a_block_is_indented_like_its_start() -> None:
    filled = fill_blocks("    <!-- generated: x -->\n    <!-- /generated -->\n", PAGE, echo)
    assert "\n    x: \n\n    end\n" in filled


def test_marks_in_code_and_within_a_line_are_text() -> None:
    text = "```markdown\n<!-- generated: x -->\n<!-- /generated -->\n```\n\nWrite `<!-- generated: x -->` there.\n"
    assert fill_blocks(text, PAGE, echo) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("\n<!-- generated: x -->\n", "page.md:2: generated block without an end"),
        ("<!-- /generated -->\n", "page.md:1: found the end of a generated block"),
        ("<!-- generated: x -->\n<!-- generated: y -->\n", "page.md:2: found a block inside the one of line 1"),
        ("<!-- generated: x 'y -->\n<!-- /generated -->\n", "page.md:1: No closing quotation"),
    ],
)
def test_broken_blocks_are_errors_that_name_file_and_line(text: str, message: str) -> None:
    with pytest.raises(DocumentationError, match=f"^{message}"):
        fill_blocks(text, PAGE, echo)


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("speed", [], "expected a generated block named one of .*support-table.*; found 'speed'"),
        ("comparison", [], "expected the name of a folder"),
        ("comparison", ["peers-none"], "peers-none/result.json: expected a result there"),
        ("fine-tuning", ["none"], "none: expected a result there"),
        ("support-table", ["x"], "expected at most 0 arguments, found x"),
        ("minilm-fidelity", ["broken.json"], "block minilm-fidelity: JSONDecodeError"),
    ],
)
def test_unknown_names_and_missing_files_are_errors(
    tmp_path: Path, name: str, arguments: list[str], message: str
) -> None:
    (tmp_path / "broken.json").write_text("{", encoding="utf-8")
    with pytest.raises(DocumentationError, match=message):
        generate(tmp_path, name, arguments)


def test_an_unknown_section_of_a_comparison_is_an_error_that_lists_them() -> None:
    results = Path(__file__).parents[3] / "bench" / "results"
    assert generate(results, "comparison", ["peers-xeon-vnni-int8", "fidelity"]).startswith("Raw outputs on 500 texts")
    with pytest.raises(
        DocumentationError, match=r"expected the start of a heading \(Model only.*found 'speed of light'"
    ):
        generate(results, "comparison", ["peers-xeon-vnni-int8", "speed of light"])
