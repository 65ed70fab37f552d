"""Advice for a column whose type is not the ledger's: code for PySpark that can be copied.

Rules
- The advice keeps each value under its name. Spark casts structs by place, so the type of a cast has the order of the
  rows. A struct with other fields is built again, field by field.
- A cast is advised only if Spark has it. If it can change a value, the advice says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructField, StructType

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_NUMBERS = frozenset({"ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType"})
_TIMES = frozenset({"DateType", "TimestampType", "TimestampNTZType"})
_INTERVALS = frozenset({"CalendarIntervalType", "YearMonthIntervalType", "DayTimeIntervalType"})
# Types with an exact text for each value, under all settings of a session.
_EXACT_TEXTS = _NUMBERS | _INTERVALS | {"BooleanType", "DateType"}
_LOSSY = "; the cast changes or refuses values that the type cannot hold"


def cast_hint(column: str, found: DataType, expected: DataType) -> str | None:
    """Return the cast of a column of type `found` to the type `expected`; None if Spark may have no such cast."""
    wanted = ordered_like(expected, found)
    exact = _casts(found, wanted)
    if exact is None:
        return None
    return f"Cast it: col({_quoted(column)!r}).cast({_type_text(wanted)!r}){'' if exact else _LOSSY}"


def fields_hint(column: str, found: DataType, expected: DataType, *, merges: bool) -> str:
    """Return the advice for a column whose structs have other fields than the ledger's.

    `merges` means that one type can have the values of both.
    """
    exact = _casts(found, expected)
    if exact is None:
        return "Keep the column as a new one: rename it and set mergeSchema"
    text = _by_name(_quoted(column), found, expected, 0)
    keep = "set mergeSchema" if merges else "rename the column and set mergeSchema"
    return (
        f"Match the fields of {column!r}: expr({text!r}) writes null for missing fields and leaves the others out"
        f"{'' if exact else _LOSSY}. To keep all fields, {keep}"
    )


def ordered_like(kind: Any, like: Any) -> Any:
    """Return the type with the fields of its structs in the order of `like`. A struct with other fields is kept."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, ArrayType) and isinstance(like, ArrayType):
        return ArrayType(ordered_like(kind.elementType, like.elementType), kind.containsNull)
    if isinstance(kind, MapType) and isinstance(like, MapType):
        key = ordered_like(kind.keyType, like.keyType)
        return MapType(key, ordered_like(kind.valueType, like.valueType), kind.valueContainsNull)
    if not (isinstance(kind, StructType) and isinstance(like, StructType)) or sorted(kind.names) != sorted(like.names):
        return kind
    return StructType(
        [
            StructField(field.name, ordered_like(kind[field.name].dataType, field.dataType), kind[field.name].nullable)
            for field in like
        ]
    )


def _casts(found: Any, wanted: Any) -> bool | None:
    """Return whether a cast keeps every value; None if Spark may have no such cast. Fields of structs are pairs."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    pairs: list[tuple[Any, Any]] = []
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        pairs = [(found.elementType, wanted.elementType)]
    elif isinstance(found, MapType) and isinstance(wanted, MapType):
        pairs = [(found.keyType, wanted.keyType), (found.valueType, wanted.valueType)]
    elif isinstance(found, StructType) and isinstance(wanted, StructType):
        pairs = [(own.dataType, field.dataType) for field in wanted if (own := _own_field(found, field.name))]
    else:
        return _atom_casts(found, wanted)
    inner = [_casts(*pair) for pair in pairs]
    return None if None in inner else all(inner)


def _atom_casts(found: Any, wanted: Any) -> bool | None:
    name, into = type(found).__name__, type(wanted).__name__
    if found == wanted or name == "NullType" or (into == "StringType" and name in _EXACT_TEXTS):
        return True
    if name == "StringType" and into == "BinaryType":
        return True
    for family in (_NUMBERS | {"BooleanType"}, _TIMES):
        if into in family and name in family | {"StringType"}:
            return False
    return False if into == "StringType" and name in _TIMES else None


def _own_field(kind: StructType, name: str) -> StructField | None:
    """Return the field of this name, else the only field whose name differs in case, which Spark ignores."""
    same = [field for field in kind if field.name == name] or [f for f in kind if f.name.lower() == name.lower()]
    return same[0] if len(same) == 1 else None


def _by_name(value: str, found: Any, wanted: Any, depth: int) -> str:
    """Return SQL for a value of type `found` as type `wanted`, with the fields of structs by name."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if found == wanted:
        return value
    if isinstance(found, StructType) and isinstance(wanted, StructType):
        fields = ", ".join(_named_field(value, found, field, depth) for field in wanted)
        return f"if({value} is null, null, named_struct({fields}))"
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        element = _by_name(f"e{depth}", found.elementType, wanted.elementType, depth + 1)
        return f"transform({value}, e{depth} -> {element})"
    if isinstance(found, MapType) and isinstance(wanted, MapType):
        key = _by_name(f"k{depth}", found.keyType, wanted.keyType, depth + 1)
        item = _by_name(f"v{depth}", found.valueType, wanted.valueType, depth + 1)
        values = f"transform_values({value}, (k{depth}, v{depth}) -> {item})"
        return values if key == f"k{depth}" else f"transform_keys({values}, (k{depth}, v{depth}) -> {key})"
    return f"cast({value} as {_type_text(wanted)})"


def _named_field(value: str, found: StructType, field: StructField, depth: int) -> str:
    own = _own_field(found, field.name)
    if own is None:
        text = f"cast(null as {_type_text(field.dataType)})"
    else:
        text = _by_name(f"{value}.{_quoted(own.name)}", own.dataType, field.dataType, depth)
    name = field.name.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{name}', {text}"


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _type_text(kind: Any) -> str:
    """Return the type as Spark parses it. Unlike `simpleString`, names of fields are quoted."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return f"array<{_type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_type_text(kind.keyType)},{_type_text(kind.valueType)}>"
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{_quoted(field.name)}: {_type_text(field.dataType)}' for field in kind)}>"
    return str(kind.simpleString())
