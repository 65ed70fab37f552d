"""Goal: the advice for a refused type is code that names each field. Method: the texts for types of each kind.

`tests/stories/test_spark_hints.py` runs the advice in Spark.
"""

from __future__ import annotations

import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from pyspark_ledger.connector.cast_hint import cast_hint, fields_hint, ordered_like

INT, LONG, TEXT = IntegerType(), LongType(), StringType()
XY = StructType().add("x y", INT).add("z`", TEXT)
YX = StructType().add("z`", INT).add("x y", LONG)
LOSSY = "; the cast changes or refuses values that the type cannot hold"


@pytest.mark.parametrize(
    ("name", "found", "expected", "cast"),
    [
        ("id", INT, TEXT, "col('id').cast('string')"),
        ("a.b", INT, TEXT, "col('`a.b`').cast('string')"),
        ("a`b", DateType(), TEXT, "col('`a``b`').cast('string')"),
        ("it's", TEXT, BinaryType(), "col(\"`it's`\").cast('binary')"),
        ("id", DoubleType(), LONG, f"col('id').cast('bigint'){LOSSY}"),
        ("id", TEXT, DecimalType(9, 2), f"col('id').cast('decimal(9,2)'){LOSSY}"),
        ("at", TimestampType(), TimestampNTZType(), f"col('at').cast('timestamp_ntz'){LOSSY}"),
        ("m", MapType(TEXT, NullType()), MapType(TEXT, INT), "col('m').cast('map<string,int>')"),
        ("s", YX, XY, f"col('s').cast('struct<`z```: string,`x y`: int>'){LOSSY}"),
        ("s", ArrayType(YX), ArrayType(XY), f"col('s').cast('array<struct<`z```: string,`x y`: int>>'){LOSSY}"),
    ],
)
def test_cast_has_the_order_of_the_rows(name: str, found: DataType, expected: DataType, cast: str) -> None:
    assert cast_hint(name, found, expected) == f"Cast it: {cast}"


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (TEXT, NullType()),
        (INT, BinaryType()),
        (TEXT, VariantType()),
        (ArrayType(INT), MapType(INT, INT)),
        (XY, TEXT),
        (BooleanType(), DateType()),
        (StructType().add("s", TEXT), StructType().add("s", XY)),
    ],
)
def test_no_cast_is_advised_where_spark_has_none(found: DataType, expected: DataType) -> None:
    assert cast_hint("c", found, expected) is None


def test_structs_with_other_fields_are_built_by_name() -> None:
    more = StructType().add("x y", INT).add("n", TEXT)
    for name, found, expected, text in (
        ("s", more, XY, "if(s is null, null, named_struct('x y', s.`x y`, 'z`', cast(null as string)))"),
        ("a.b", ArrayType(XY), ArrayType(StructType().add("X y", INT)),
         "transform(`a.b`, e0 -> if(e0 is null, null, named_struct('X y', e0.`x y`)))"),
        ("m", MapType(more, TEXT), MapType(StructType().add("n", TEXT), INT),
         ("transform_keys(transform_values(m, (k0, v0) -> cast(v0 as int)), "
          "(k0, v0) -> if(k0 is null, null, named_struct('n', k0.n)))")),
    ):  # fmt: skip
        assert fields_hint(name, found, expected, merges=True).startswith(
            f"Match the fields of {name!r}: expr({text!r}) writes null"
        )
    other = StructType().add("x y", ArrayType(INT)).add("n", TEXT)
    assert fields_hint("s", other, XY, merges=False) == "Keep the column as a new one: rename it and set mergeSchema"


def test_ordered_like_keeps_structs_with_other_fields() -> None:
    assert ordered_like(ArrayType(YX), ArrayType(XY)).elementType.names == XY.names
    assert ordered_like(MapType(YX, INT), MapType(XY, YX)).keyType == StructType().add("x y", LONG).add("z`", INT)
    assert ordered_like(YX, StructType().add("z`", INT)) is YX
    assert ordered_like(YX, TEXT) is YX
