"""Advice for a column whose type is not the ledger's: an expression of Spark that can be copied, or words.

Rules
- A cast is advised only if Spark has it. Spark casts structs by place, so the advised type has the order of the rows.
- If a cast can change a value, the advice says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

_PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z_0-9]*")
_NUMBERS = frozenset({"ByteType", "ShortType", "IntegerType", "LongType", "FloatType", "DoubleType", "DecimalType"})
_TIMES = frozenset({"DateType", "TimestampType", "TimestampNTZType"})
# Types with a text for each value. Spark's text of any other type cannot be read back.
_EXACT_TEXTS = _NUMBERS | {"BooleanType", "DateType"}


def cast_hint(column: str, found: DataType, expected: DataType) -> str:
    """Return the advice for a column of type `found` in the rows, and of type `expected` in the ledger."""
    wanted = ordered_like(expected, found)
    exact = _casts(found, wanted)
    if exact is None:
        return f"Convert the column to {expected.simpleString()}, or write it to another column or ledger"
    warning = "" if exact else "; the cast changes or refuses values that the type cannot hold"
    return f"Cast it: col({_quoted(column)!r}).cast({_type_text(wanted)!r}){warning}"


def ordered_like(kind: Any, like: Any) -> Any:
    """Return the type with the fields of its structs in the order of `like`. A struct with other fields is kept."""
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    if isinstance(kind, ArrayType) and isinstance(like, ArrayType):
        return ArrayType(ordered_like(kind.elementType, like.elementType), kind.containsNull)
    if isinstance(kind, MapType) and isinstance(like, MapType):
        key = ordered_like(kind.keyType, like.keyType)
        return MapType(key, ordered_like(kind.valueType, like.valueType), kind.valueContainsNull)
    if not (isinstance(kind, StructType) and isinstance(like, StructType)):
        return kind
    if len(set(kind.names)) < len(kind.names) or sorted(kind.names) != sorted(like.names):
        return kind
    return StructType(
        [
            StructField(field.name, ordered_like(kind[field.name].dataType, field.dataType), kind[field.name].nullable)
            for field in like
        ]
    )


def _casts(found: Any, wanted: Any) -> bool | None:
    """Return whether a cast keeps every value; None if Spark may have no such cast."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if found == wanted or type(found).__name__ == "NullType":
        return True
    pairs: list[tuple[Any, Any]] = []
    if isinstance(found, ArrayType) and isinstance(wanted, ArrayType):
        pairs = [(found.elementType, wanted.elementType)]
    elif isinstance(found, MapType) and isinstance(wanted, MapType):
        pairs = [(found.keyType, wanted.keyType), (found.valueType, wanted.valueType)]
    elif isinstance(found, StructType) and isinstance(wanted, StructType) and found.names == wanted.names:
        pairs = [(own.dataType, other.dataType) for own, other in zip(found, wanted, strict=True)]
    if pairs:
        inner = [_casts(*pair) for pair in pairs]
        return None if None in inner else all(inner)
    return _atom_casts(type(found).__name__, type(wanted).__name__)


def _atom_casts(found: str, wanted: str) -> bool | None:
    if wanted == "StringType" and found in _EXACT_TEXTS:
        return True
    for family in (_NUMBERS | {"BooleanType"}, _TIMES):
        if wanted in family and found in family | {"StringType"}:
            return False
    return False if wanted == "StringType" and found in _TIMES else None


def _quoted(name: str) -> str:
    return name if _PLAIN_NAME.fullmatch(name) else f"`{name.replace('`', '``')}`"


def _type_text(kind: Any) -> str:
    """Return the type as Spark parses it. Unlike `simpleString`, field names are quoted."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    if isinstance(kind, ArrayType):
        return f"array<{_type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{_type_text(kind.keyType)},{_type_text(kind.valueType)}>"
    if isinstance(kind, StructType):
        return f"struct<{','.join(f'{_quoted(field.name)}: {_type_text(field.dataType)}' for field in kind)}>"
    return str(kind.simpleString())
