"""Goal: a text of rows is appended as its columns say, or refused whole. Method: texts parsed, and a ledger of a real
broker.
"""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.connector.rows.text_files import (
    KeyedColumns,
    RowMessage,
    RowText,
    TextFormat,
    append_messages,
    append_rows,
    format_of,
    messages_of,
    parse_rows,
)
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Refused

AT = dt.datetime(2026, 11, 22, 10, 15, tzinfo=dt.UTC)
COLUMNS = pa.schema([("id", pa.int32()), ("item", pa.string()), ("at", pa.timestamp("us", "UTC")), ("on", pa.date32())])
CSV = b'id,item,at,on\n1,"sa\nlt",2026-11-22T10:15:00Z,2026-11-22\n2,,,\n3,"",,\n'
JSON = (
    b'{"id": 1, "item": "sa\\nlt", "at": "2026-11-22T10:15:00Z", "on": "2026-11-22"}\n'
    b'{"id": 2}\n{"item": "", "id": 3, "at": null}\n'
)
KEYED = KeyedColumns("k", "p")


def csv(data: bytes) -> RowText:
    return RowText("a.csv", TextFormat.csv, data)


def jsonl(data: bytes) -> RowText:
    return RowText("a.jsonl", TextFormat.jsonl, data)


@pytest.mark.parametrize("text", [csv(CSV), jsonl(JSON)])
def test_rows_have_the_types_of_the_ledger(text: RowText) -> None:
    rows = parse_rows(text, COLUMNS)
    assert rows.schema == COLUMNS
    nothing = {"at": None, "on": None}
    assert rows.to_pylist() == [
        {"id": 1, "item": "sa\nlt", "at": AT, "on": AT.date()},
        {"id": 2, "item": None, **nothing},
        {"id": 3, "item": "", **nothing},
    ]


@pytest.mark.parametrize(("data", "line"), [(b"null", 1), (b'\n null\n{"a": 1}\n', 2), (b'{"a": 1}\r\nnull\r\n', 2)])
def test_a_line_of_null_is_refused_by_its_number(data: bytes, line: int) -> None:
    with pytest.raises(Refused, match=rf"line {line} of a.jsonl is null, expected a JSON object"):
        parse_rows(jsonl(data), None)
    assert parse_rows(jsonl(b'{"a": null,"b":"null"}\n'), None).num_rows == 1


def test_types_are_inferred_from_the_whole_text() -> None:
    lines = b"n\n" + b"1\n" * 2_000_000 + b"2.5\n"
    assert parse_rows(csv(lines), None).schema == pa.schema([("n", pa.float64())])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (csv(b""), "a.csv cannot be read as csv: Empty CSV file"),
        (csv(b"id\n1,2\n"), "a.csv cannot be read as csv: CSV parse error: Expected 1 columns, got 2"),
        (csv(b"id,id\n1,2\n"), "a.csv has two columns 'id'"),
        (csv(b"id\nNULL\n"), "conversion error to int32: invalid value 'NULL'"),
        (csv(b"at\n2026-11-22 10:15\n"), "expected a zone offset"),
        (jsonl(b'{"id": 1}\n{"id": "x"}\n'), "a.jsonl cannot be read as jsonl: JSON parse error"),
        (jsonl(b'{"on": "2026-02-30"}\n'), "a.jsonl cannot be read as jsonl: Failed to parse string: '2026-02-30'"),
    ],
)
def test_a_text_that_cannot_be_read_is_one_line(text: RowText, words: str) -> None:
    with pytest.raises(Refused) as refused:
        parse_rows(text, COLUMNS)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


def test_fields_of_structs_are_matched_by_name_and_none_is_left_out() -> None:
    columns = pa.schema([("s", pa.struct([("x", pa.int64()), ("y", pa.int64())]))])
    for data, rows in ((b'{"s": {"y": 2, "x": 1}}', {"x": 1, "y": 2}), (b'{"s": {"y": 2}}', {"x": None, "y": 2})):
        assert parse_rows(jsonl(data), columns).to_pylist() == [{"s": rows}]
    with pytest.raises(Refused, match=r"the ledger has no field 's.z' \(int64\)"):
        parse_rows(jsonl(b'{"s": {"x": 1, "z": 3}}'), columns)


def test_a_row_becomes_a_message_with_key_and_properties() -> None:
    wanted = [
        RowMessage(b"12", "007", {"a": "b"}),
        RowMessage(None, "x", {}),
        RowMessage(b"", None, {"c": "d"}),
    ]
    texts = (
        csv(b'k,value,p\n007,12,"{""a"": ""b""}"\nx,,\n,"","{""c"": ""d""}"\n'),
        jsonl(b'{"k": "007", "value": "12", "p": {"a": "b"}}\n{"k": "x"}\n{"value": "", "p": {"c": "d"}}\n'),
    )
    for text in texts:
        assert messages_of(parse_rows(text, KEYED.schema(text.written)), KEYED, text.where) == wanted
    assert messages_of(pa.table({"value": [b"1"]}), KeyedColumns(), "x") == [RowMessage(b"1", None, {})]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (csv(b"k,value\n1,2\n"), "a.csv has the columns k, value, expected value, k, p"),
        (csv(b"k,value,p\n1,2,three\n"), "column 'p' of row 0 of a.csv is 'three', expected an object of texts"),
        (csv(b'k,value,p\n1,2,"{""a"": 1}"\n'), "expected an object of texts"),
        (jsonl(b'{"k": "1", "value": "2", "p": {"a": 1}}\n'), "expected an object of texts"),
        (jsonl(b'{"k": "1", "value": {"a": 1}, "p": null}\n'), "a.jsonl cannot be read as jsonl"),
    ],
)
def test_a_row_that_is_no_message_is_refused(text: RowText, words: str) -> None:
    with pytest.raises(Refused) as refused:
        messages_of(parse_rows(text, KEYED.schema(text.written)), KEYED, text.where)
    assert words in str(refused.value)


def test_the_name_of_a_file_states_its_format() -> None:
    assert [format_of(name) for name in ("a.CSV", "b/c.jsonl", "d.ndjson", "e.json")] == ["csv", *["jsonl"] * 3]
    with pytest.raises(
        Refused, match=r"'a.txt' ends with '.txt', expected .csv, .jsonl.*Name the format with --format"
    ):
        format_of("a.txt")


def test_texts_are_appended_all_or_none(store: Path) -> None:
    orders, clicks = connect(store).ledger("orders"), connect(store).ledger("clicks")
    first = csv(b"id,item\n1,tea\n")
    for wrong, words in (
        (csv(b"id\n2\n"), "a.csv has the columns id, the text before it has id, item"),
        (csv(b"item,id\nsalt,x\n"), "invalid value 'x'"),
    ):
        with pytest.raises(Refused, match=words):
            append_rows(orders, [first, wrong])
    assert connect(store).names() == []
    assert append_rows(orders, [first, csv(b"item,id\nsalt,2\n"), jsonl(b'{"id": 3}\n')]) == orders.end().end
    assert orders.read().to_pylist() == [{"id": n, "item": item} for n, item in ((1, "tea"), (2, "salt"), (3, None))]
    assert append_rows(orders, [csv(b"id,item\n4,\n")]) == orders.end().end, "the ledger knows the type"
    assert append_rows(orders, [csv(b"id,item\n")]) is None
    with pytest.raises(Refused, match="orders holds rows, messages were given"):
        append_messages(orders, [csv(b"k,value\n1,2\n")], KeyedColumns("k"))
    assert append_messages(clicks, [csv(b"k,value\n1,2\n"), csv(b"k,value\n3,4\n")], KeyedColumns("k"))
    assert clicks.read()["value"].to_pylist() == [b"2", b"4"]
    assert append_messages(clicks, [csv(b"k,value\n")], KeyedColumns("k")) is None


def test_rows_of_arrow_become_messages(store: Path) -> None:
    clicks = connect(store).ledger("clicks")
    for value in (pa.array(["home"]), pa.array([b"home"])):
        rows = pa.table({"k": ["ada"], "value": value})
        append_messages(clicks, [RowText("a.arrow", TextFormat.arrow, rows)], KeyedColumns("k"))
    assert clicks.read().select(["__key", "value"]).to_pylist() == 2 * [{"__key": "ada", "value": b"home"}]
    wrong = pa.table({"k": ["ada"], "value": [[1]]})
    with pytest.raises(Refused, match=r"column 'value' of a\.arrow cannot be read as binary"):
        append_messages(clicks, [RowText("a.arrow", TextFormat.arrow, wrong)], KeyedColumns("k"))


def test_a_column_without_a_value_gets_the_type_of_a_later_text(store: Path) -> None:
    def read(name: str) -> list[object]:
        return [tuple(row.values()) for row in connect(store).ledger(name).read().to_pylist()]

    for name, texts in (
        ("lines", [csv(b"id,note\n1,\n"), csv(b"note,id\ngift,2\n"), csv(b"id,note\n3,\n")]),
        (
            "events",
            [
                jsonl(f'{{"id": {n}, "note": {text}}}\n'.encode())
                for n, text in ((1, "null"), (2, '"gift"'), (3, "null"))
            ],
        ),
    ):
        wanted = [(1, None), (2, "gift"), (3, None)]
        append_rows(connect(store).ledger(f"{name}-at-once"), texts)
        for text in texts:
            append_rows(connect(store).ledger(name), [text])
        assert read(f"{name}-at-once") == read(name) == wanted
    deep = connect(store).ledger("deep")
    values = [{"l": [], "s": {"n": 1, "x": None}}, {"l": ["a"], "s": {"n": 2, "x": {"y": [1]}}}, {"l": None, "s": None}]
    empty = connect(store).ledger("empty")
    for text in (b'{"m": {}}\n', b'{"m": {"k": 1}}\n'):
        append_rows(empty, [jsonl(text)])
    assert empty.read().to_pylist() == [{"m": {"k": None}}, {"m": {"k": 1}}]
    for value in values:
        append_rows(deep, [jsonl(json.dumps(value).encode() + b"\n")])
    assert deep.read().to_pylist() == values
