"""CoNLL and CoNLL-U files, and the fields tokens and tags of records."""

import json
import re
from pathlib import Path

import pytest

from bert_runtime.errors import DataError
from bert_runtime.records import iter_records, read_records

from .test_records import record, write

SENTENCES = [(["EU", "rejects", "German", "call"], ["B-ORG", "O", "B-MISC", "O"]), (["Peter"], ["B-PER"])]

CONLL = "EU\tB-ORG\nrejects\tO\nGerman\tB-MISC\ncall\tO\n\nPeter\tB-PER\n"

CONLL_2003 = """-DOCSTART- -X- -X- O

EU NNP B-NP B-ORG
rejects VBZ B-VP O
German JJ B-NP B-MISC
call NN I-NP O

-DOCSTART- -X- -X- O

Peter NNP B-NP B-PER
"""

CONLLU = """# newdoc id = weblog
# text = Don't go there.
1-2\tDon't\t_\t_\t_\t_\t_\t_\t_\t_
1\tDo\tdo\tAUX\tVB\tMood=Imp\t3\taux\t3:aux\t_
2\tn't\tnot\tPART\tRB\t_\t3\tadvmod\t3:advmod\t_
3\tgo\tgo\tVERB\tVB\tMood=Imp\t0\troot\t0:root\t_
3.1\tsomewhere\tsomewhere\tADV\tRB\t_\t_\t_\t3:advmod\t_
4\tthere\tthere\tADV\tRB\t_\t3\tadvmod\t3:advmod\tSpaceAfter=No

# text = #1
1\t#1\t#1\tSYM\tNN\t_\t0\troot\t0:root\t_
"""


def sentences(path: Path, columns: dict[str, str] | None = None) -> list[tuple[list[str], list[str]]]:
    return [(record.tokens(), record.tags()) for record in read_records(path, columns)]


@pytest.mark.parametrize("ending", ["", ".gz"])
@pytest.mark.parametrize("content", [CONLL, CONLL_2003], ids=["tabs", "spaces"])
def test_conll_yields_one_record_per_sentence(tmp_path: Path, content: str, ending: str) -> None:
    assert sentences(write(tmp_path / f"data.conll{ending}", content)) == SENTENCES


def test_jsonl_yields_the_same_sentences(tmp_path: Path) -> None:
    rows = "".join(json.dumps({"tokens": tokens, "tags": tags}) + "\n" for tokens, tags in SENTENCES)
    assert sentences(write(tmp_path / "data.jsonl", rows)) == SENTENCES
    renamed = rows.replace('"tags"', '"ner_tags"')
    assert sentences(write(tmp_path / "renamed.jsonl", renamed), {"tags": "ner_tags"}) == SENTENCES


@pytest.mark.parametrize("separator", ["\n", "\t\n", " \t \n", "\r\n", "\n\n\t\n"])
def test_sentences_end_at_blank_lines(tmp_path: Path, separator: str) -> None:
    path = write(tmp_path / "data.conll", separator + CONLL.replace("\n\n", "\n" + separator) + separator)
    assert sentences(path) == SENTENCES


def test_byte_order_mark_and_windows_line_ends(tmp_path: Path) -> None:
    for name, content in (("data.conll", CONLL), ("data.conllu", CONLLU)):
        expected = sentences(write(tmp_path / name, content))
        assert sentences(write(tmp_path / name, b"\xef\xbb\xbf" + content.replace("\n", "\r\n").encode())) == expected


def test_line_of_a_sentence_is_its_first_token(tmp_path: Path) -> None:
    for name, content, lines in (("a.conll", CONLL, [1, 6]), ("a.conllu", CONLLU, [4, 11])):
        path = write(tmp_path / name, content)
        assert [(record.line, record.where) for record in read_records(path)] == [
            (line, f"{path}:{line}") for line in lines
        ]


def test_tokens_keep_other_white_space(tmp_path: Path) -> None:
    tokens = ["a\u00a0b", "\u00a0", "\u2028", "\x85x", "New York", "tail\u200b"]
    content = "".join(f"{token}\tO\n" for token in tokens)
    assert sentences(write(tmp_path / "tabs.conll", content)) == [(tokens, ["O"] * 6)]
    content = "a\u00a0b   O \n\u00a0 O\n"
    assert sentences(write(tmp_path / "spaces.conll", content)) == [(["a\u00a0b", "\u00a0"], ["O", "O"])]


def test_docstart_line_is_not_a_token(tmp_path: Path) -> None:
    """Some corpora name the document in this line, and have no blank line after it."""
    path = write(tmp_path / "data.conll", "-DOCSTART- (1 EU)\n" + CONLL.replace("\n\n", "\n-DOCSTART-\n"))
    assert sentences(path) == SENTENCES


def test_hash_signs_are_tokens_in_conll(tmp_path: Path) -> None:
    assert sentences(write(tmp_path / "data.conll", "#hashtag\tO\n")) == [(["#hashtag"], ["O"])]


def test_conll_columns_are_chosen_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "data.conll", CONLL_2003)
    assert sentences(path, {"tags": "1"})[1] == (["Peter"], ["NNP"])
    assert sentences(path, {"tokens": "1"})[1] == (["NNP"], ["B-PER"])
    assert sentences(path, {"tokens": "0", "tags": "3"}) == SENTENCES


def test_single_column_conll_has_no_tags(tmp_path: Path) -> None:
    path = write(tmp_path / "data.conll", "EU\nrejects\n\nPeter\n")
    records = read_records(path)
    assert [record.fields for record in records] == [{"tokens": ["EU", "rejects"]}, {"tokens": ["Peter"]}]
    with pytest.raises(DataError, match=re.escape(f"{path}:4: expected a field 'tags', found only 'tokens'")):
        records[1].tags()


def test_last_column_used_as_tokens_is_not_tags(tmp_path: Path) -> None:
    (record,) = read_records(write(tmp_path / "data.conll", "1\tEU\n2\trejects\n"), {"tokens": "1"})
    assert record.fields == {"tokens": ["EU", "rejects"]}


@pytest.mark.parametrize("ending", ["", ".gz"])
def test_conllu_yields_words_and_upos_tags(tmp_path: Path, ending: str) -> None:
    path = write(tmp_path / f"data.conllu{ending}", CONLLU)
    assert sentences(path) == [
        (["Do", "n't", "go", "there"], ["AUX", "PART", "VERB", "ADV"]),
        (["#1"], ["SYM"]),
    ]


def test_conllu_columns_are_chosen_by_name_or_number(tmp_path: Path) -> None:
    path = write(tmp_path / "data.conllu", CONLLU)
    for column in ("4", "xpos", "XPOS"):
        assert sentences(path, {"tags": column})[0] == (["Do", "n't", "go", "there"], ["VB", "RB", "VB", "RB"])
    assert sentences(path, {"tokens": "lemma", "tags": "7"})[0] == (
        ["do", "not", "go", "there"],
        ["aux", "advmod", "root", "advmod"],
    )


def test_sentences_are_read_lazily(tmp_path: Path) -> None:
    rows = iter_records(write(tmp_path / "data.conll", "fine\tO\n\nbroken\tO\tO\nhere\tO\n"))
    assert next(rows).tokens() == ["fine"]
    with pytest.raises(DataError, match=r"data\.conll:4: expected 3 columns as in line 3, found 2"):
        next(rows)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("data.conll", "a\tO\nb\n", ":2: expected 2 columns as in line 1, found 1"),
        ("data.conll", "a O\n\nb O\nc X O\n", ":4: expected 2 columns as in line 3, found 3"),
        ("data.conllu", "# text\n1\ta\tO\n", ":2: expected 10 columns between tabs, found 3"),
        ("data.conllu", CONLLU + "2 a a X _ _ 0 root _ _\n", ":12: expected 10 columns between tabs, found 1"),
        ("data.conllu", "one" + "\t_" * 9, ":1: expected an id such as 3, 3-4 or 8.1 in the first column, found 'one'"),
        ("data.conllu", "# text = nothing\n1-2\tDon't" + "\t_" * 8, ": expected at least one row, found none"),
        ("data.conll", "-DOCSTART- -X- O\n\n", ": expected at least one row, found none"),
    ],
)
def test_malformed_sentences_are_reported_with_line(tmp_path: Path, name: str, content: str, message: str) -> None:
    path = write(tmp_path / name, content)
    with pytest.raises(DataError, match=re.escape(f"{path}{message}")):
        read_records(path)


NUMBERS = "expected columns for 'tokens' and 'tags' by number from 0, such as tokens=0,tags=3, found"
NAMES = (
    "expected columns for 'tokens' and 'tags' by name (id, form, lemma, upos, xpos, feats, head, deprel, deps, misc) "
    "or by number from 0 to 9, found"
)


@pytest.mark.parametrize(
    ("name", "columns", "message"),
    [
        ("data.conll", {"tokens": "0", "tags": "ner"}, f": {NUMBERS} tags=ner"),
        ("data.conll", {"tags": "-1"}, f": {NUMBERS} tags=-1"),
        ("data.conll", {"text": "0", "label": "1"}, f": {NUMBERS} text=0, label=1"),
        ("data.conll", {"tags": "2"}, ":1: expected a column 2, counted from 0, found 2 columns"),
        ("data.conllu", {"tags": "pos"}, f": {NAMES} tags=pos"),
        ("data.conllu", {"tag": "upos"}, f": {NAMES} tag=upos"),
        ("data.conllu", {"tags": "10"}, ":4: expected a column 10, counted from 0, found 10 columns"),
    ],
)
def test_unknown_columns_of_a_format_are_reported(
    tmp_path: Path, name: str, columns: dict[str, str], message: str
) -> None:
    path = write(tmp_path / name, CONLLU if name == "data.conllu" else CONLL)
    with pytest.raises(DataError, match=re.escape(f"{path}{message}")):
        read_records(path, columns)


def test_tokens_must_be_nonempty_strings() -> None:
    assert record(tokens=["a", "\u00a0"]).tokens() == ["a", "\u00a0"]
    for fields, message in (
        ({"text": "a"}, "expected a field 'tokens', found only 'text'"),
        ({"tokens": None}, "expected a field 'tokens'"),
        ({"tokens": "a b"}, "expected 'tokens' to be a list, found str"),
        ({"tokens": []}, "'tokens' is empty"),
        ({"tokens": ["a", ""]}, "expected tokens[1] to be a non-empty string, found ''"),
        ({"tokens": ["a", 5]}, "expected tokens[1] to be a non-empty string, found 5"),
    ):
        with pytest.raises(DataError, match=re.escape(f"some.jsonl:7: {message}")):
            record(**fields).tokens()


def test_tags_must_be_one_name_per_token() -> None:
    assert record(tokens=["a", "b"], tags=["O", "B-PER"]).tags() == ["O", "B-PER"]
    assert record(tokens=["a", "b"], pos=[0, 12]).tags("pos") == ["0", "12"]
    for tags, message in (
        (None, "expected a field 'tags', found only 'tokens', 'tags'"),
        ("O O", "expected 'tags' to be a list, found str"),
        (["O"], "expected as many 'tags' as 'tokens' (2), found 1"),
        ([], "expected as many 'tags' as 'tokens' (2), found 0"),
        (["O", ""], "expected tags[1] to be a name, found ''"),
        ([True, "O"], "expected tags[0] to be a name, found True"),
        ([1.5, "O"], "expected tags[0] to be a name, found 1.5"),
    ):
        with pytest.raises(DataError, match=re.escape(f"some.jsonl:7: {message}")):
            record(tokens=["a", "b"], tags=tags).tags()
    with pytest.raises(DataError, match=r"some\.jsonl:7: expected a field 'pos', found only 'tokens'"):
        record(tokens=["a"]).tags("pos")


WNUT_TAGS = {"O"} | {
    f"{prefix}-{kind}"
    for prefix in "BI"
    for kind in ("person", "location", "corporation", "product", "creative-work", "group")
}


@pytest.mark.shared_data
@pytest.mark.parametrize(
    ("name", "count", "tokens", "tags"),
    [
        ("wnut17/wnut17train.conll", 3394, 62_730, WNUT_TAGS),
        ("wnut17/emerging.dev.conll", 1009, 15_733, WNUT_TAGS),
        ("ud_english_ewt/en_ewt-ud-train.conllu.gz", 12_544, 204_577, None),
        ("ud_english_ewt/en_ewt-ud-dev.conllu.gz", 2001, 25_147, None),
    ],
)
def test_public_conll_files(shared_data: Path, name: str, count: int, tokens: int, tags: set[str] | None) -> None:
    """Counts as stated in the datasets' README."""
    records = read_records(shared_data / name)
    assert len(records) == count
    assert sum(len(record.tokens()) for record in records) == tokens
    found = {tag for record in records for tag in record.tags()}
    assert found == tags if tags else len(found) == 17  # the universal parts of speech
