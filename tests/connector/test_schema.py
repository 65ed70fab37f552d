"""Goal: Spark gets the expected schema, and unsupported types are refused by column. Method: a table of types."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    CalendarIntervalType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
    YearMonthIntervalType,
)
from pyspark.testing.objects import ExamplePointUDT

from pyspark_ledger.connector.schema import (
    arrow_schema,
    columns_to_write,
    merged_columns,
    nullable_type,
    require_same_schema,
    require_writable,
    spark_schema,
)
from pyspark_ledger.ledger.errors import Refused, Unsupported
from pyspark_ledger.ledger.message.columns import schema_bytes, schema_from_bytes, typed_columns
from pyspark_ledger.ledger.rows.metadata_columns import METADATA

STRICT = StructType(
    [
        StructField("id", LongType(), nullable=False),
        StructField("tags", ArrayType(StringType(), containsNull=False), nullable=False),
        StructField("by", MapType(StringType(), IntegerType(), valueContainsNull=False)),
        StructField("in", StructType([StructField("x", DecimalType(10, 2), nullable=False)])),
    ]
)


def test_columns_to_write_are_nullable_at_every_level_and_round_trip() -> None:
    columns = columns_to_write(STRICT, "orders")
    assert all(field.nullable for field in columns)
    assert columns.field("tags").type.value_field.nullable
    assert columns.field("in").type.field(0).nullable
    assert schema_from_bytes(schema_bytes(columns)) == columns
    assert arrow_schema(spark_schema(columns, "orders")) == columns


def test_metadata_columns_have_documented_names_types_and_order() -> None:
    stated = [
        ("__key", "string"),
        ("__topic", "string"),
        ("__messageId", "binary"),
        ("__publishTime", "timestamp"),
        ("__eventTime", "timestamp"),
        ("__messageProperties", "map<string,string>"),
        ("__position", "struct<ledgerId:bigint,entryId:bigint,batchIndex:int>"),
    ]
    assert [(field.name, field.dataType.simpleString()) for field in spark_schema(METADATA, "orders")] == stated
    page = (Path(__file__).resolve().parents[2] / "docs" / "rows.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| `(__\w+)` \| `(.+?)` \|", page, re.MULTILINE) == stated


def test_metadata_columns_are_to_the_letter_what_spark_expects() -> None:
    assert arrow_schema(spark_schema(METADATA, "orders")) == METADATA


def test_foreign_arrow_types_become_sparks() -> None:
    columns = pa.schema(
        [("a", pa.large_string()), ("t", pa.timestamp("ms", "UTC")), ("d", pa.dictionary("int8", "string"))]
    )
    assert arrow_schema(spark_schema(columns, "x")) == pa.schema(
        [("a", pa.string()), ("t", pa.timestamp("us", "UTC")), ("d", pa.string())]
    )
    with pytest.raises(Unsupported, match="column 'u' of ledger 'x' is uint64"):
        spark_schema(pa.schema([("u", pa.uint64())]), "x")


@pytest.mark.parametrize("kind", [CalendarIntervalType(), YearMonthIntervalType()])
def test_a_type_that_cannot_be_kept_is_refused_by_column_however_deep(kind: DataType) -> None:
    for schema in (
        StructType().add("odd", kind),
        StructType().add("odd", ArrayType(kind)),
        StructType().add("odd", MapType(StringType(), kind)),
    ):
        with pytest.raises(Refused, match="column 'odd'"):
            columns_to_write(schema, "orders")
    with pytest.raises(Refused, match=r"column 'deep\.odd'"):
        columns_to_write(StructType().add("deep", StructType().add("odd", kind)), "orders")


@pytest.mark.parametrize(
    "kind",
    [
        NullType(),
        BooleanType(),
        DoubleType(),
        DateType(),
        TimestampType(),
        TimestampNTZType(),
        BinaryType(),
        DayTimeIntervalType(),
        VariantType(),
        ArrayType(VariantType()),
    ],
)
def test_a_type_that_can_be_kept_is(kind: DataType) -> None:
    columns = columns_to_write(StructType().add("c", kind), "orders")
    assert spark_schema(columns, "orders")["c"].dataType == kind


@pytest.mark.parametrize("kind", [StringType("UNICODE_CI"), ExamplePointUDT(), ArrayType(ExamplePointUDT())])
def test_what_a_log_does_not_keep_of_a_type_is_written_again(kind: DataType) -> None:
    given = StructType().add("c", kind)
    columns = columns_to_write(given, "orders")
    require_writable(given, columns, "orders")
    assert spark_schema(columns, "orders")["c"].dataType == nullable_type(kind) != kind


def test_columns_that_spark_cannot_tell_apart_are_refused() -> None:
    with pytest.raises(Refused, match="'Id' and 'id'"):
        columns_to_write(StructType().add("Id", LongType()).add("id", LongType()), "orders")
    with pytest.raises(Refused, match="without columns"):
        columns_to_write(StructType(), "orders")


def test_a_later_write_must_have_the_ledgers_columns() -> None:
    registered = columns_to_write(StructType().add("id", LongType()).add("name", StringType()), "orders")
    require_writable(StructType().add("name", StringType()).add("id", LongType(), nullable=False), registered, "orders")
    with pytest.raises(Refused, match=r"'name' \(string\).*missing"):
        require_writable(StructType().add("id", LongType()), registered, "orders")
    with pytest.raises(Refused, match=r"'more' \(int32\).*not in the ledger"):
        require_writable(
            StructType().add("id", LongType()).add("name", StringType()).add("more", IntegerType()),
            registered,
            "orders",
        )
    require_writable(StructType().add("id", IntegerType()).add("name", StringType()), registered, "orders")
    with pytest.raises(Refused, match=r"'id'.*is bigint, but double in the rows to write\. Cast it"):
        require_writable(StructType().add("id", DoubleType()).add("name", StringType()), registered, "orders")
    narrow = columns_to_write(StructType().add("id", IntegerType()), "orders")
    with pytest.raises(Refused, match=r"is int, but bigint in the rows to write.*or set mergeSchema, which widens"):
        require_writable(StructType().add("id", LongType()), narrow, "orders")


def test_a_schema_given_by_the_user_must_be_the_ledgers() -> None:
    own = StructType().add("id", LongType()).add("tags", ArrayType(StringType()))
    require_same_schema(
        StructType().add("id", LongType(), nullable=False).add("tags", ArrayType(StringType(), containsNull=False)),
        own,
        "orders",
        2,
    )
    narrow = StructType().add("id", IntegerType())
    require_same_schema(StructType().add("id", LongType()), narrow, "orders", 1)
    with pytest.raises(Refused, match="is int, the read was planned with bigint"):
        require_same_schema(StructType().add("id", LongType()), narrow, "orders", 0)
    for given, words in (
        (StructType().add("id", LongType()), "nothing where ledger 'orders' has column 'tags'"),
        (
            StructType().add("ID", LongType()).add("tags", ArrayType(StringType())),
            "'ID' where ledger 'orders' has column 'id'",
        ),
        (
            StructType().add("id", IntegerType()).add("tags", ArrayType(StringType())),
            "column 'id' of ledger 'orders' is bigint, the read was planned with int",
        ),
        (own.add("more", LongType()), "column 'more', which ledger 'orders' does not have"),
    ):
        with pytest.raises(Refused, match=words):
            require_same_schema(given, StructType(list(own)[:2]), "orders", 2)


def test_columns_are_added_behind_and_only_widened() -> None:
    registered = columns_to_write(StructType().add("id", LongType()).add("name", StringType()), "orders")
    assert merged_columns(StructType().add("name", StringType()), registered, "orders") == registered
    grown = merged_columns(StructType().add("more", DateType()).add("id", LongType()), registered, "orders")
    assert grown.names == ["id", "name", "more"]
    assert grown.field("more").type == pa.date32()
    for kind, words in (
        (DoubleType(), "is bigint, but double in the rows to write"),
        (StringType(), "but string in the rows to write"),
    ):
        with pytest.raises(Refused, match=f"column 'id' of ledger 'orders' {words}" if "bigint" in words else words):
            merged_columns(StructType().add("more", DateType()).add("id", kind), registered, "orders")
    assert merged_columns(StructType().add("id", IntegerType()), registered, "orders") == registered
    narrow = columns_to_write(StructType().add("id", IntegerType()).add("name", StringType()), "orders")
    assert merged_columns(StructType().add("id", LongType()), narrow, "orders") == registered
    with pytest.raises(Refused, match="column 'ID' cannot be added to ledger 'orders', which has 'id'"):
        merged_columns(StructType().add("ID", LongType()), registered, "orders")
    with pytest.raises(Refused, match="column 'v' is interval"):
        merged_columns(StructType().add("v", CalendarIntervalType()), registered, "orders")


def test_names_of_metadata_columns_are_refused_when_they_are_written() -> None:
    with pytest.raises(Refused, match=r"column '__key'.*Rename or drop the column"):
        columns_to_write(StructType().add("id", LongType()).add("__key", LongType()), "orders")
    for name, known in (("__Key", "__key"), ("__LEDGER", "__ledger"), ("__eventtime", "__eventTime")):
        with pytest.raises(Refused, match=f"column '{name}'.*Spark ignores case, and '{known}' is reserved"):
            columns_to_write(StructType().add("id", LongType()).add(name, StringType()), "orders")


def test_interval_that_would_change_its_type_is_refused() -> None:
    given = StructType().add("x", DayTimeIntervalType(0, 0))
    with pytest.raises(Refused, match="column 'x'"):
        require_writable(given, columns_to_write(given, "orders"), "orders")


def test_fields_of_structs_are_matched_by_name_and_keep_the_ledgers_order() -> None:
    pair = StructType().add("x", IntegerType()).add("y", LongType())
    swapped = StructType().add("y", IntegerType()).add("x", LongType())
    for wrap in (lambda kind: kind, ArrayType, lambda kind: ArrayType(StructType().add("s", kind))):
        registered = columns_to_write(StructType().add("c", wrap(pair)), "orders")
        narrow = StructType().add("c", wrap(StructType().add("y", IntegerType()).add("x", IntegerType())))
        require_writable(narrow, registered, "orders")
        assert merged_columns(narrow, registered, "orders") == registered
        wide = StructType().add("c", wrap(StructType().add("y", LongType()).add("x", LongType())))
        with pytest.raises(Refused, match="or set mergeSchema, which widens the column"):
            require_writable(wide, registered, "orders")
        both = wrap(StructType().add("x", LongType()).add("y", LongType()))
        assert spark_schema(merged_columns(wide, registered, "orders"), "orders")["c"].dataType == both
        both = wrap(StructType().add("x", LongType()).add("y", LongType()))
        found = merged_columns(StructType().add("c", wrap(swapped)), registered, "orders")
        assert spark_schema(found, "orders")["c"].dataType == both
    keyed = columns_to_write(StructType().add("c", MapType(pair, pair)), "orders")
    same = StructType().add("y", LongType()).add("x", IntegerType())
    require_writable(StructType().add("c", MapType(same, same)), keyed, "orders")


def test_fields_of_structs_are_added_with_merge_only() -> None:
    less = StructType().add("x", LongType())
    more = StructType().add("y", LongType()).add("x", IntegerType())
    for wrap in (lambda kind: kind, ArrayType, lambda kind: MapType(StringType(), kind)):
        registered = columns_to_write(StructType().add("c", wrap(less)), "orders")
        given = StructType().add("c", wrap(more))
        with pytest.raises(Refused, match=r"\.y' \(int64\) not in the ledger.*To keep all fields, set mergeSchema"):
            require_writable(given, registered, "orders")
        merged = merged_columns(given, registered, "orders")
        expected = wrap(StructType().add("x", LongType()).add("y", LongType()))
        assert spark_schema(merged, "orders")["c"].dataType == expected
        assert merged_columns(StructType().add("c", wrap(less)), merged, "orders") == merged, "a lacking field is null"
        with pytest.raises(Refused, match=r"\.y' \(int64\) missing"):
            require_writable(StructType().add("c", wrap(less)), merged, "orders")
        with pytest.raises(Refused, match=r"field 'c.*X' cannot be added to ledger 'orders', which has 'c.*x'"):
            merged_columns(StructType().add("c", wrap(StructType().add("X", LongType()))), registered, "orders")
        other = StructType().add("x", StringType()).add("y", LongType())
        with pytest.raises(Refused, match="To keep all fields, rename the column and set mergeSchema"):
            merged_columns(StructType().add("c", wrap(other)), registered, "orders")
    with pytest.raises(Refused, match="is struct<x:bigint>, the read"):
        require_same_schema(StructType().add("c", more), StructType().add("c", less), "orders", 1)
    twice = StructType().add("x", LongType()).add("x", LongType())
    with pytest.raises(Refused, match=r"column 'c\.s' is struct<x:bigint,x:bigint>.*a name of its own"):
        columns_to_write(StructType().add("c", ArrayType(StructType().add("s", twice)).elementType), "orders")


def test_void_gets_a_type_without_an_option_and_is_written_to_any_type() -> None:
    pair = StructType().add("x", LongType())
    for wrap in (
        lambda kind: kind,
        ArrayType,
        lambda kind: MapType(StringType(), kind),
        lambda kind: StructType([*pair, StructField("y", kind)]),
    ):
        void, text = (StructType().add("c", wrap(kind)) for kind in (NullType(), StringType()))
        registered = columns_to_write(void, "orders")
        require_writable(text, registered, "orders")
        typed = typed_columns(registered, columns_to_write(text, "orders"))
        assert merged_columns(text, registered, "orders") == typed == columns_to_write(text, "orders")
        require_writable(void, typed, "orders")
        assert merged_columns(void, typed, "orders") == typed
