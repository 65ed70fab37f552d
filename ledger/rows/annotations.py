"""Annotations of a user's class, as types of fields: `record_of` converts a class, `field_type` an annotation.

Rules
- docs/rows.md has a table of annotations and their columns. `ledger.rows.scalar_rules` has the types of single values.
- Every other annotation is refused. The error names the class, the field and the annotation.
- `Annotated[datetime, pyarrow.timestamp("us")]` is a time without a zone. So are `msgspec.Meta(tz=False)` and
  pydantic's `NaiveDatetime`.
"""

from __future__ import annotations

import enum
import sys
from datetime import datetime
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec
import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.rows.class_fields import class_fields, is_row_class
from pyspark_ledger.ledger.rows.field_types import FieldType, Lists, Maps, Members, Nullable, Record, Scalar
from pyspark_ledger.ledger.rows.scalar_rules import LOCAL_TIMES, RULES, arrow_name

_HINT = "docs/rows.md lists the types that fields can have"


def record_of(kind: type, path: str = "", around: tuple[type, ...] = ()) -> Record:
    """Return the type of a class's objects. `around` are the classes that have the class as a part.

    Raises Refused if objects of the class cannot be rows.
    """
    found = class_fields(kind)
    fields = [
        (name, get, field_type(annotation, f"{path}.{name}" if path else name, (*around, kind)))
        for name, get, annotation in found.fields
    ]
    return Record(path, kind, fields, found.build, runs_code=found.runs_code)


def field_type(annotation: Any, path: str, around: tuple[type, ...]) -> FieldType:
    """Return the type of a field. Raises Refused if no column holds its values."""
    kind, exact = _plain(annotation)
    if get_origin(kind) in {Union, UnionType}:
        inner = [argument for argument in get_args(kind) if argument is not NoneType]
        if len(inner) > 1:
            raise _refused(path, kind, around, _HINT)
        return Nullable(field_type(inner[0] if exact is None else Annotated[inner[0], exact], path, around))
    if get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, enum.Enum)):
        return _members(kind, path, exact, around)
    if kind in RULES:
        return _scalar(kind, path, exact, around)
    if exact is not None:
        raise _refused(path, kind, around, f"Annotate a single value with {exact}, such as the element of a list")
    return _nested(kind, path, around)


def _nested(kind: Any, path: str, around: tuple[type, ...]) -> FieldType:
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is list or (origin is tuple and arguments[1:] == (...,)):
        return Lists(path, field_type(arguments[0], f"{path}.element", around), origin)
    if origin is dict:
        key, item = arguments
        return Maps(path, field_type(key, f"{path}.key", around), field_type(item, f"{path}.value", around))
    if kind in around:
        raise _refused(path, kind, around, f"{kind.__name__} contains itself: store the inner object as text")
    if is_row_class(kind):
        return record_of(kind, path, around)
    raise _refused(path, kind, around, _HINT)


def _plain(annotation: Any) -> tuple[Any, pa.DataType | None]:
    """Return an annotation without its wrappers, and the Arrow type that they declare."""
    exact = None
    pydantic = sys.modules.get("pydantic")
    while True:
        if get_origin(annotation) is Annotated:
            for item in annotation.__metadata__:
                if isinstance(item, pa.DataType):
                    exact = item
                elif isinstance(item, msgspec.Meta) and item.tz is False:
                    exact = LOCAL_TIMES.column
            annotation = annotation.__origin__
        elif hasattr(annotation, "__supertype__"):  # a NewType
            annotation = annotation.__supertype__
        elif pydantic is not None and annotation is pydantic.AwareDatetime:
            annotation = datetime
        elif pydantic is not None and annotation is pydantic.NaiveDatetime:
            annotation = Annotated[datetime, LOCAL_TIMES.column]
        else:
            return annotation, exact


def _scalar(kind: type, path: str, exact: pa.DataType | None, around: tuple[type, ...]) -> FieldType:
    rule = LOCAL_TIMES if kind is datetime and exact is not None and LOCAL_TIMES.fits(exact) else RULES[kind]
    if exact is not None and not rule.fits(exact):
        raise _refused(
            path, f"{kind.__name__} as {arrow_name(exact)}", around, f"Annotate it with a type such as {rule.column}"
        )
    return Scalar(path, kind, rule, exact)


def _members(kind: Any, path: str, exact: pa.DataType | None, around: tuple[type, ...]) -> FieldType:
    """Return the type of an Enum or a Literal. Its values decide the type of the column."""
    is_enum = isinstance(kind, type)
    found = [member.value for member in kind] if is_enum else list(get_args(kind))
    values = [value for value in found if value is not None]
    classes = set(map(type, values))
    if len(classes) != 1 or not classes <= {str, int} or (is_enum and (None in found or issubclass(kind, enum.Flag))):
        raise _refused(path, kind, around, "Use an Enum or a Literal whose values are all str, or all int")
    inner = _scalar(classes.pop(), path, exact, around)
    members = dict(zip(values, kind if is_enum else values, strict=True))
    result = Members(inner, kind.__name__ if is_enum else "Literal", members, kind if is_enum else None)
    return result if len(values) == len(found) else Nullable(result)


def _refused(path: str, kind: Any, around: tuple[type, ...], hint: str) -> Refused:
    shown = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    return Refused(f"field {path!r} of class {around[0].__name__} is {shown}, which no column holds", hint=hint)
