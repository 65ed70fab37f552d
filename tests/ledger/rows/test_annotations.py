"""Goal: a class whose objects cannot be rows is refused by its name, field and reason. Method: a class of each kind."""

from __future__ import annotations

import enum
from dataclasses import InitVar, dataclass, field
from typing import Annotated, Any, Generic, Literal, NamedTuple, NotRequired, TypedDict, TypeVar

import msgspec
import pyarrow as pa
import pydantic
import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.rows.row_type import RowType

T = TypeVar("T")


class Lost(msgspec.Struct):
    id: int
    seen: set[int]


class Either(msgspec.Struct):
    value: int | str


class Undone(msgspec.Struct):
    later: Nowhere  # type: ignore[name-defined]  # noqa: F821 — what the test is about


class Box(msgspec.Struct, Generic[T]):
    inner: T


class Boxes(msgspec.Struct):
    boxes: list[Box[int]]


class Node(msgspec.Struct):
    children: list[Node]


class Wide(msgspec.Struct):
    number: Annotated[int, pa.string()]


class Parts(msgspec.Struct):
    numbers: Annotated[list[int], pa.int32()]


class Mixed(msgspec.Struct):
    value: Literal["a", 1]


class Rights(enum.Flag):
    READ = 1


class Flagged(msgspec.Struct):
    rights: Rights


class Nothing(msgspec.Struct):
    pass


class Doubled(pydantic.BaseModel):
    a: int
    b: int = pydantic.Field(alias="a")


@dataclass
class Made:
    id: int
    total: float = field(init=False, default=0.0)


@dataclass
class Seeded:
    id: int
    seed: InitVar[int]


class Tuple(NamedTuple):
    id: int


class Loose(TypedDict):
    id: int
    note: NotRequired[str]


class Extra(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    id: int


class TwoNames(pydantic.BaseModel):
    id: int = pydantic.Field(serialization_alias="ID")


class Root(pydantic.RootModel[int]):
    pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Lost, r"field 'seen' of class Lost is set\[int\], which no column holds"),
        (Either, r"field 'value' of class Either is int \| str, which no column holds"),
        (Undone, r"class Undone has annotations that cannot be resolved: name 'Nowhere' is not defined"),
        (Box, "class Box is generic"),
        (Boxes, r"field 'boxes\.element' of class Boxes is .*Box\[int\], which no column holds"),
        (Node, r"field 'children\.element' of class Node is Node, which no column holds.*Node contains itself"),
        (Wide, r"field 'number' of class Wide is int as string, which no column holds.*such as int64"),
        (Parts, r"field 'numbers' of class Parts is list\[int\].*Annotate a single value with int32"),
        (Mixed, "field 'value' of class Mixed is .*values are all str, or all int"),
        (Flagged, "field 'rights' of class Flagged is Rights"),
        (Nothing, "class Nothing has no fields"),
        (Doubled, "class Doubled has two fields for the column 'a'"),
        (Made, "class Made has a constructor that differs from its fields in 'total'"),
        (Seeded, "class Seeded has a constructor that differs from its fields in 'seed'"),
        (Tuple, "Tuple'> is no class of rows.*Use a msgspec Struct, a dataclass, a TypedDict or a pydantic model"),
        (Loose, "class Loose need not have the key 'note'"),
        (Extra, "class Extra allows extra fields, which have no column"),
        (TwoNames, "class TwoNames has several aliases of the field 'id'"),
        (Root, "class Root is a model of pydantic 1 or a root model"),
        (dict, "'dict'> is no class of rows"),
        (3, "3 is no class of rows"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_class_that_cannot_be_rows_is_refused_by_name(kind: Any, words: str) -> None:
    with pytest.raises(Refused, match=words):
        RowType(kind)
