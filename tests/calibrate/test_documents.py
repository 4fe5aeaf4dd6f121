import json
from pathlib import Path

import pyarrow as arrow
import pytest
from pyarrow import parquet

from conftest import SHARED, needs
from slimformer.calibrate.documents import Document, mix_documents, parse_labels, read_documents
from slimformer.errors import ColumnNotFound, DataEmpty, DataNotFound, DataUnreadable

DATA = SHARED / "data"


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def texts(documents: list[Document]) -> list[str]:
    return [document.text for document in documents]


# -- running text


def test_blank_lines_separate_documents(tmp_path):
    file = write(tmp_path / "a.txt", "one\nstill one\n\n\n  \ntwo\n")
    assert texts(read_documents(file)) == ["one\nstill one", "two"]


def test_a_title_joins_the_paragraphs_below_it(tmp_path):
    article = " \n = First = \n \n a b \n \n = = Section = = \n \n c \n"
    file = write(tmp_path / "wiki.txt", article + article.replace("First", "Second"))
    first, second = texts(read_documents(file))
    assert first.startswith("= First =") and first.endswith("c")
    assert "= = Section = =" in first and second.startswith("= Second =")


def test_an_equation_inside_a_paragraph_is_no_title(tmp_path):
    file = write(tmp_path / "a.txt", "so we have\n= x + y =\nand more\n\nother\n")
    assert texts(read_documents(file)) == ["so we have\n= x + y =\nand more", "other"]


def test_end_of_text_lines_outrank_blank_lines(tmp_path):
    file = write(tmp_path / "stories.txt", "once\n\nupon\n<|endoftext|>\na time\n<|endoftext|>\n")
    assert texts(read_documents(file)) == ["once\n\nupon", "a time"]


def test_lines_without_blank_lines_become_passages(tmp_path):
    file = write(tmp_path / "lines.txt", "five words in every line\n" * 400)
    documents = read_documents(file)
    assert all(150 <= len(text.split()) <= 300 for text in texts(documents)[:-1])
    assert sum(len(text.split()) for text in texts(documents)) == 2000


@pytest.mark.parametrize("word", ["word ", "字"])
def test_an_endless_line_is_cut_without_losing_a_character(tmp_path, word):
    count = 2_000_000 // len(word.encode())
    documents = read_documents(write(tmp_path / "endless.txt", word * count))
    assert max(len(text) for text in texts(documents)) < 3_000
    assert sum(text.count(word.strip()) for text in texts(documents)) == count


def test_line_ends_and_byte_order_mark_do_not_matter(tmp_path):
    plain = write(tmp_path / "a.txt", "one\ntwo\n\nthree\n")
    other = write(tmp_path / "b.txt", b"\xef\xbb\xbfone\r\ntwo\r\n\r\nthree\r\n")
    assert read_documents(plain) == read_documents(other)


# -- tables


def test_quotation_marks_in_tsv_are_characters(tmp_path):
    file = write(tmp_path / "a.tsv", 'sentence\tlabel\n"open quote\t1\nhe said "no"\t0\n')
    assert read_documents(file) == [Document('"open quote', label=1), Document('he said "no"', label=0)]


def test_quoted_csv_fields_may_hold_commas_and_line_breaks(tmp_path):
    file = write(tmp_path / "a.csv", 'text,label\n"one, two\nthree",pos\nfour,neg\n')
    assert read_documents(file) == [Document("one, two\nthree", label="pos"), Document("four", label="neg")]


def test_csv_fields_may_be_longer_than_the_limit_of_the_csv_module(tmp_path):
    file = write(tmp_path / "a.csv", f"text\n{'x' * 300_000}\n")
    assert len(read_documents(file)[0].text) == 300_000


@pytest.mark.parametrize(
    ("header", "pair"),
    [
        ("index\tsentence1\tsentence2\tscore", ("a", "b")),
        ("index\tquestion\tsentence\tlabel", ("a", "b")),
        ("id\tquestion1\tquestion2\tis_duplicate", ("a", "b")),
        ("id\t#1 String\t#2 String\tQuality", ("a", "b")),
    ],
)
def test_pairs_of_glue_are_recognised_by_their_header(tmp_path, header, pair):
    file = write(tmp_path / "a.tsv", f"{header}\n0\ta\tb\t1\n")
    assert read_documents(file) == [Document(*pair, label=1)]


def test_a_table_named_txt_is_recognised_by_its_header(tmp_path):
    rows = "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n1\t7\t8\tone\ttwo\r\n0\t7\t8\tthree\tfour\r\n"
    documents = read_documents(write(tmp_path / "msr.txt", rows))
    assert documents == [Document("one", "two", 1), Document("three", "four", 0)]


def test_named_columns_win_over_usual_ones(tmp_path):
    file = write(tmp_path / "a.tsv", "text\tother\tlabel\tstars\na\tb\t1\t5\n")
    assert read_documents(file, columns=["other", "text"], label="stars") == [Document("b", "a", 5)]


def test_json_lines_use_text_or_the_only_string(tmp_path):
    named = write(tmp_path / "a.jsonl", '{"url": "u", "text": "a"}\n\n{"url": "v", "text": "b"}\n')
    only = write(tmp_path / "b.jsonl", '{"t": "a", "s": 1}\n{"t": "b", "s": 0}\n')
    assert texts(read_documents(named)) == texts(read_documents(only)) == ["a", "b"]


@pytest.mark.parametrize("indent", [None, 2])
def test_json_lists_are_read_like_json_lines(tmp_path, indent):
    rows = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    file = write(tmp_path / "a.json", json.dumps(rows, indent=indent))
    assert read_documents(file) == [Document("a", label="x"), Document("b", label="y")]


@pytest.mark.parametrize("indent", [None, 2])
def test_questions_of_one_squad_article_form_a_group(tmp_path, indent):
    qas = [{"question": "q1"}, {"question": "q2"}]
    squad = {"data": [{"title": "T", "paragraphs": [{"context": "c", "qas": qas}]}]}
    file = write(tmp_path / "squad.json", json.dumps(squad, indent=indent))
    assert read_documents(file) == [Document("q1", "c", group="T"), Document("q2", "c", group="T")]


def test_parquet_is_read_by_column(tmp_path):
    table = arrow.table({"idx": [0, 1], "sentence": ["a", "b"], "label": [1, 0]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert read_documents(tmp_path / "a.parquet") == [Document("a", label=1), Document("b", label=0)]


def test_halves_of_surrogate_pairs_are_replaced(tmp_path):
    file = write(tmp_path / "a.jsonl", '{"text": "a \\ud83d b"}\n')
    assert texts(read_documents(file)) == ["a ? b"]


def test_a_few_torn_rows_are_left_out(tmp_path):
    file = write(tmp_path / "a.tsv", "id\tsentence\n" + "1\tgood\n" * 200 + "torn\n")
    assert len(read_documents(file)) == 200


@pytest.mark.parametrize(
    ("column", "labels"),
    [
        (["1", "0"], [1, 0]),
        (["5.000", "3"], [5.0, 3.0]),
        (["yes", "1"], ["yes", "1"]),
        (["nan", "inf"], ["nan", "inf"]),
        (["", "1"], [None, 1]),
        ([True, None], [1, None]),
    ],
)
def test_labels_of_a_column_are_of_one_kind(column, labels):
    assert parse_labels(column) == labels


# -- several sources, texts in memory


def test_no_source_outweighs_another():
    long = [Document("x" * 1000) for _ in range(100)]
    short = [Document("y" * 10) for _ in range(1000)]
    mixed = "".join(texts(mix_documents([long, short])))
    assert abs(mixed.count("x") - mixed.count("y")) <= 1000
    assert mixed.count("y") >= 9_000


def test_commas_and_lists_name_the_same_sources(tmp_path):
    a = write(tmp_path / "a.txt", "one\n\ntwo")
    b = write(tmp_path / "b.jsonl", '{"text": "three"}\n{"text": "four"}')
    mixed = read_documents([a, str(b)])
    assert mixed == read_documents(f"{a},{b}")
    assert {"one", "two"} & set(texts(mixed)) and {"three", "four"} & set(texts(mixed))


def test_sources_are_mixed_by_their_weights(tmp_path):
    a, b = (write(tmp_path / name, "\n\n".join([name[0] * 100] * 300)) for name in ("x.txt", "y.txt"))
    for source in (f"{a}*3,{b}", [f"{a}*3", str(b)], f"{a}*1.5,{b}*.5"):
        mixed = "".join(texts(read_documents(source)))
        assert mixed.count("x") == 300 * 100 and abs(mixed.count("y") - 100 * 100) <= 100
    with pytest.raises(DataUnreadable, match="draws nothing from"):
        read_documents(f"{a}*0,{b}")
    with pytest.raises(DataNotFound, match=r"no file .*gone\.txt"):
        read_documents(f"{tmp_path / 'gone.txt'}*2,{b}")
    write(tmp_path / "c*2", "starred\n\ntwice")
    assert texts(read_documents(str(tmp_path / "c*2"))) == ["starred", "twice"]


def test_a_comma_in_a_file_name_is_no_separator(tmp_path):
    file = write(tmp_path / "a,b.txt", "one\n\ntwo")
    assert texts(read_documents(str(file))) == ["one", "two"]


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_strings_in_memory_are_documents(kind):
    assert texts(read_documents(kind(["a text", " ", "see notes.txt for more"]))) == [
        "a text",
        "see notes.txt for more",
    ]


# -- what can be wrong


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("empty.txt", b"", DataEmpty, "empty.txt is empty (0 bytes); give a file with at least one document"),
        ("white.txt", b" \n\n ", DataEmpty, "white.txt holds no text"),
        ("header.tsv", b"sentence\tlabel\n", DataEmpty, "header.tsv holds no text"),
        ("bare.csv", b"\n\n", DataEmpty, "bare.csv holds no text"),
        ("blank.jsonl", b"\n \n", DataEmpty, "blank.jsonl holds no text"),
        ("nul.txt", b"PK\0\0", DataUnreadable, "nul.txt is not text: it holds NUL bytes"),
        ("late.txt", b"text\n" * 9000 + b"\0", DataUnreadable, "late.txt is not text: it holds NUL bytes"),
        (
            "latin.txt",
            b"caf\xe9 au lait",
            DataUnreadable,
            "latin.txt is not UTF-8 text (invalid continuation",
        ),
        ("utf16.csv", "text\na\n".encode("utf-16"), DataUnreadable, "utf16.csv is not text: it holds NUL"),
        ("bad.jsonl", b'{"text": "a"}\n{"text": \n', DataUnreadable, "bad.jsonl is not JSON at line 2: "),
        ("bad.json", b"{\n\n  oops\n}", DataUnreadable, "bad.json is not JSON at line 3: "),
        ("deep.json", b"[" * 100_000, DataUnreadable, "deep.json is not JSON at line 1: "),
        ("number.jsonl", b"3\n", DataUnreadable, "number.jsonl holds 3 at line 1; expected an object"),
        (
            "list.jsonl",
            b'{"text": ["a"]}',
            DataUnreadable,
            "column 'text' of list.jsonl holds list, not text",
        ),
        ("open.csv", b'text\n"never closed\n', DataUnreadable, "open.csv is not a quoted, comma-separated"),
        ("short.tsv", b"id\tsentence\n1\ta\n2\n", DataUnreadable, "1 of 2 rows of short.tsv lack sentence"),
        ("bad.parquet", b"no parquet at all", DataUnreadable, "bad.parquet is not a parquet file: "),
        ("two.jsonl", b'{"a": "x", "b": "y"}', ColumnNotFound, "is in two.jsonl; it has: a, b; name the one"),
    ],
)
def test_a_bad_file_is_named_in_one_line(tmp_path, name, content, error, message):
    with pytest.raises(error) as caught:
        read_documents(write(tmp_path / name, content))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_wrong_column_lists_the_right_ones(tmp_path):
    file = write(tmp_path / "train.tsv", "sentence\tlabel\na\t1\n")
    message = "column 'foo' is not in train.tsv; it has: sentence, label; name "
    for asked in ({"columns": ["foo"]}, {"columns": ["sentence", "foo"]}, {"label": "foo"}):
        with pytest.raises(ColumnNotFound) as caught:
            read_documents(file, **asked)
        assert str(caught.value).startswith(message)


def test_plain_text_has_no_columns(tmp_path):
    with pytest.raises(ColumnNotFound, match=r"column 'foo' is not in a\.txt; it is plain text"):
        read_documents(write(tmp_path / "a.txt", "a\n\nb"), columns=["foo"])


def test_three_text_columns_are_too_many(tmp_path):
    with pytest.raises(ColumnNotFound, match="3 text columns were asked for; name one, or two for a pair"):
        read_documents(write(tmp_path / "a.csv", "a,b,c\n1,2,3\n"), columns=["a", "b", "c"])


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataNotFound) as caught:
        read_documents(tmp_path / "nowhere.txt")
    assert "there is no file" in str(caught.value) and "nowhere.txt" in str(caught.value)
    assert "'builtin'" in str(caught.value)


def test_a_text_taken_for_a_name_is_no_accident():
    with pytest.raises(DataNotFound, match="there is no file 'Once upon"):
        read_documents("Once upon a time " * 1000)


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(DataUnreadable, match="is a folder; name a file in it"):
        read_documents(tmp_path)


@pytest.mark.parametrize("nothing", [[], ["", "  "]])
def test_no_text_in_memory_is_empty_data(nothing):
    with pytest.raises(DataEmpty):
        read_documents(nothing)


# -- the real files


@needs(DATA)
@pytest.mark.parametrize(
    ("name", "count", "paired", "label"),
    [
        ("wikitext2/valid.txt", 60, False, type(None)),
        ("tinystories_sample/tinystories_sample.txt", 2317, False, type(None)),
        ("c4_sample/c4_sample.jsonl", 1000, False, type(None)),
        ("sst2/dev.tsv", 872, False, int),
        ("sst2/test-labeled.tsv", 1821, False, int),
        ("mrpc/msr_paraphrase_test.txt", 1725, True, int),
        ("stsb/dev.tsv", 1500, True, float),
        ("qnli/dev.tsv", 5463, True, str),
        ("qnli/test.tsv", 5463, True, type(None)),
        ("xquad_en/xquad.en.json", 1190, True, type(None)),
    ],
)
def test_published_files_are_read_whole(name, count, paired, label):
    documents = read_documents(DATA / name)
    assert len(documents) == count
    assert all((document.pair is not None) == paired for document in documents)
    assert {type(document.label) for document in documents} == {label}
