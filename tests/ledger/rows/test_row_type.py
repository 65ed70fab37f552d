"""Goal: an object becomes a row and comes back equal, and what does not fit is refused by its row and field.

Method: classes of each kind, random values, and one wrong value among many.
"""

from __future__ import annotations

import enum
import pickle
import re
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from typing import Annotated, Any, Literal, NewType, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pyarrow as pa
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.rows.row_type import RowType

UserId = NewType("UserId", int)
LONGS = st.integers(-(2**63), 2**63 - 1)
TIMES = st.datetimes(timezones=st.sampled_from([UTC, timezone(timedelta(hours=-5))]), min_value=datetime(2, 1, 1))  # noqa: DTZ001 — bounds have no zone


class Colour(enum.Enum):
    RED = "r"
    BLUE = "b"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Address(msgspec.Struct, frozen=True):
    city: str
    number: int | None = None


class Order(msgspec.Struct):
    id: UserId
    price: float
    at: datetime
    due: Annotated[datetime, pa.timestamp("us")] | None
    day: date
    hour: time
    took: timedelta
    total: Annotated[Decimal, pa.decimal128(20, 3)]
    small: Annotated[int, pa.int16()]
    colour: Colour
    level: Level | None
    size: Literal["s", "m"]
    raw: bytes
    gift: bool
    address: Address
    tags: list[str | None]
    others: tuple[Address, ...]
    by_name: dict[str, Address | None]
    note: str | None = msgspec.field(name="Note", default=None)


ADDRESSES = st.builds(Address, st.text(), st.none() | LONGS)
ORDERS = st.builds(
    Order,
    LONGS,
    st.floats(allow_nan=False),
    TIMES,
    st.none() | st.datetimes(),
    st.dates(),
    st.times(),
    st.timedeltas(timedelta(days=-9999), timedelta(days=9999)),
    st.decimals(-(10**16), 10**16, places=3),
    st.integers(-(2**15), 2**15 - 1),
    st.sampled_from(Colour),
    st.none() | st.sampled_from(Level),
    st.sampled_from(["s", "m"]),
    st.binary(),
    st.booleans(),
    ADDRESSES,
    st.lists(st.none() | st.text(), max_size=3),
    st.lists(ADDRESSES, max_size=3).map(tuple),
    st.dictionaries(st.text(max_size=3), st.none() | ADDRESSES, max_size=3),
    st.none() | st.text(),
)


def batch_of(kind: type, objects: list[Any], columns: pa.Schema | None = None) -> pa.RecordBatch:
    return RowType(kind).table(objects, columns, "log").combine_chunks().to_batches()[0]


def back(kind: type, batch: pa.RecordBatch) -> list[Any]:
    return list(RowType(kind).rows(batch, lambda row: f"row {row} of the batch"))


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(st.lists(ORDERS, min_size=1, max_size=8))
def test_objects_come_back_equal_also_from_a_slice(orders: list[Order]) -> None:
    batch = batch_of(Order, orders)
    assert back(Order, batch) == orders
    assert back(Order, batch.slice(1, 3)) == orders[1:4]
    assert {order.at.tzinfo for order in back(Order, batch)} == {UTC}


def test_the_columns_of_a_class() -> None:
    address = pa.struct([("city", pa.string()), ("number", pa.int64())])
    assert RowType(Order).columns == pa.schema(
        {
            "id": pa.int64(), "price": pa.float64(), "at": pa.timestamp("us", "UTC"), "due": pa.timestamp("us"),
            "day": pa.date32(), "hour": pa.time64("us"), "took": pa.duration("us"), "total": pa.decimal128(20, 3),
            "small": pa.int16(), "colour": pa.string(), "level": pa.int64(), "size": pa.string(), "raw": pa.binary(),
            "gift": pa.bool_(), "address": address, "tags": pa.list_(pa.string()), "others": pa.list_(address),
            "by_name": pa.map_(pa.string(), address), "Note": pa.string(),
        }.items()
    )  # fmt: skip


@dataclass(frozen=True)
class Person:
    name: str
    tags: list[str] = field(default_factory=list)


@dataclass
class Tool:
    name: str
    owner: Person | None = field(default=None, kw_only=True)


@dataclass
class Saw(Tool):
    teeth: Annotated[int, pa.int32()] = 0


class Keyed(msgspec.Struct, kw_only=True, rename="camel"):
    first_name: str = "x"
    kind: int


class Leaf(pydantic.BaseModel):
    name: str


class Tree(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(strict=True, frozen=True)
    order_id: int = pydantic.Field(alias="orderId", ge=0)
    at: pydantic.AwareDatetime
    local: pydantic.NaiveDatetime | None = None
    colour: Colour = Colour.RED
    person: Person | None = None
    leaves: list[Leaf] = []


class Plain(TypedDict):
    id: int
    leaf: Leaf | None


AT = datetime(2026, 1, 2, 3, 4, 5, 6, UTC)
EACH_KIND: list[tuple[type, list[Any], list[str]]] = [
    (Person, [Person("a", ["x"]), Person("b")], ["name", "tags"]),
    (Saw, [Saw("a", 5, owner=Person("p")), Saw("b")], ["name", "owner", "teeth"]),
    (Keyed, [Keyed(kind=1), Keyed(first_name="b", kind=2)], ["firstName", "kind"]),
    (
        Tree,
        [
            Tree(orderId=1, at=AT, local=AT.replace(tzinfo=None), leaves=[Leaf(name="l")]),
            Tree(orderId=2, at=AT, colour=Colour.BLUE, person=Person("p", ["t"])),
        ]
        * 300,
        ["orderId", "at", "local", "colour", "person", "leaves"],
    ),
    (Plain, [{"id": 1, "leaf": Leaf(name="a")}, {"id": 2, "leaf": None}], ["id", "leaf"]),
]


@pytest.mark.parametrize(("kind", "objects", "names"), EACH_KIND, ids=lambda value: getattr(value, "__name__", None))
def test_each_kind_of_class_is_a_row(kind: type, objects: list[Any], names: list[str]) -> None:
    batch = batch_of(kind, objects)
    assert batch.schema.names == names
    assert back(kind, batch) == objects
    assert pickle.loads(pickle.dumps(RowType(kind))).columns == RowType(kind).columns  # noqa: S301 — of this test


class Money(msgspec.Struct):
    price: Decimal


def test_a_decimal_has_the_digits_of_the_ledger_or_none() -> None:
    with pytest.raises(Refused, match=r"field 'price' of class Money does not declare the digits.*decimal128\(18, 2\)"):
        batch_of(Money, [Money(Decimal("1.5"))])
    nested = msgspec.defstruct("Bill", [("lines", list[Money | None])])
    with pytest.raises(Refused, match=r"field 'lines\.element\.price' of class Bill does not declare the digits"):
        batch_of(nested, [nested([])])
    columns = pa.schema([("price", pa.decimal128(9, 2))])
    assert back(Money, batch_of(Money, [Money(Decimal("1.5"))], columns)) == [Money(Decimal("1.50"))]
    with pytest.raises(Refused, match=r"row 1 for ledger 'log': field 'price' of class Money does not fit Decimal"):
        batch_of(Money, [Money(Decimal("1.5")), Money(Decimal("1.555"))], columns)


class Line(msgspec.Struct):
    id: int
    price: float
    name: str
    gift: bool
    at: datetime
    day: date
    local: Annotated[datetime, pa.timestamp("us")] | None
    colour: Colour
    size: Literal["s", "m"]
    tags: list[str]
    by_name: dict[str, int]
    address: Address
    small: Annotated[int, pa.int8()] = 0


LINE = Line(1, 1.5, "a", True, AT, date(2026, 1, 2), None, Colour.RED, "s", ["t"], {"k": 1}, Address("c"))


class LongAddress(Address, frozen=True):
    country: str = "fr"


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("id", "1", r"field 'id' of class Line is '1' \(str\), expected int"),
        ("id", True, r"field 'id' of class Line is True \(bool\), expected int"),
        ("id", 1.0, r"field 'id' of class Line is 1\.0 \(float\), expected int"),
        ("id", 2**63, "field 'id' of class Line does not fit int: "),
        ("id", None, "field 'id' of class Line is None, expected int"),
        ("small", 128, "field 'small' of class Line does not fit int as int8: "),
        ("price", True, r"field 'price' of class Line is True \(bool\), expected float"),
        ("price", 2**60 + 1, "field 'price' of class Line does not fit float: "),
        ("name", b"a", r"field 'name' of class Line is b'a' \(bytes\), expected str"),
        ("name", "\ud800", "field 'name' of class Line does not fit str: "),
        ("name", 5 * "long " * 50, None),
        ("gift", 1, r"field 'gift' of class Line is 1 \(int\), expected bool"),
        (
            "at",
            AT.replace(tzinfo=None),
            r"field 'at' of class Line is datetime.*, expected a datetime with a time zone",
        ),
        ("at", date(2026, 1, 2), r"field 'at' of class Line is .* \(date\), expected datetime"),
        ("day", AT, r"field 'day' of class Line is .* \(datetime\), expected date"),
        ("local", AT, "field 'local' of class Line is .*, expected a datetime as .* without a time zone"),
        ("colour", "r", r"field 'colour' of class Line is 'r' \(str\), expected Colour \(str\)"),
        ("size", "l", r"field 'size' of class Line is 'l', expected Literal \(str\): 's', 'm'"),
        ("tags", ["a", None], r"field 'tags\.element' of class Line is None, expected str"),
        ("tags", "ab", r"field 'tags' of class Line is 'ab' \(str\), expected list\[str\]"),
        ("by_name", {"k": "v"}, r"field 'by_name\.value' of class Line is 'v' \(str\), expected int"),
        ("by_name", {1: 1}, r"field 'by_name\.key' of class Line is 1 \(int\), expected str"),
        ("address", Address(None), r"field 'address\.city' of class Line is None, expected str"),  # type: ignore[arg-type]
        (
            "address",
            LongAddress("c"),
            r"field 'address' of class Line is LongAddress.*\(LongAddress\), expected Address",
        ),
    ],
    ids=ascii,
)
def test_a_wrong_value_is_refused_by_row_and_field(name: str, value: Any, words: str | None) -> None:
    objects = [LINE, LINE, msgspec.structs.replace(LINE, **{name: value}), LINE]
    if words is None:
        assert back(Line, batch_of(Line, objects)) == objects
        return
    with pytest.raises(Refused, match=rf"row 2 for ledger 'log': {words}.*; nothing was appended"):
        batch_of(Line, objects)


def test_a_part_without_a_value_and_an_unknown_key_are_refused() -> None:
    incomplete = Person.__new__(Person)
    with pytest.raises(Refused, match=r"row 1 for ledger 'log': field 'name' of class Person has no value"):
        batch_of(Person, [Person("a"), incomplete])
    with pytest.raises(Refused, match=r"row 1 for ledger 'log': it has the key 'more', expected Plain"):
        batch_of(Plain, [{"id": 1, "leaf": None}, {"id": 1, "leaf": None, "more": 1}])
    with pytest.raises(Refused, match=r"row 0 for ledger 'log': field 'leaf' of class Plain has no value"):
        batch_of(Plain, [{"id": 1}])


def test_a_wrong_value_after_many_rows_has_its_number() -> None:
    class Number(msgspec.Struct):
        id: int

    rows = [Number(row) for row in range(70_000)]
    rows[69_999].id = "x"  # type: ignore[assignment]
    with pytest.raises(Refused, match="row 69999 for ledger 'log'"):
        RowType(Number).table(rows, None, "log")
    rows[69_999].id = 69_999
    assert RowType(Number).table(rows, None, "log")["id"].to_pylist() == list(range(70_000))


LONG_ADDRESS = pa.struct([("number", pa.int16()), ("city", pa.large_string()), ("country", pa.string())])
FITTING = pa.schema(
    {
        "more": pa.int64(), "small": pa.int8(), "address": LONG_ADDRESS, "by_name": pa.map_(pa.string(), pa.int16()),
        "tags": pa.large_list(pa.string()), "size": pa.string(), "colour": pa.null(), "local": pa.timestamp("us"),
        "day": pa.date64(), "at": pa.timestamp("ms", "Europe/Paris"), "gift": pa.bool_(), "name": pa.large_string(),
        "price": pa.float32(), "id": pa.uint8(),
    }.items()
)  # fmt: skip


def test_columns_of_other_widths_and_more_columns_fit() -> None:
    line = msgspec.structs.replace(LINE, at=AT.replace(microsecond=7000))
    batch = batch_of(Line, [line, line], FITTING)
    assert batch.schema == FITTING.set(6, pa.field("colour", pa.string())), "a column without a type gets one"
    assert back(Line, batch) == [line, line]
    assert batch["more"].null_count == batch["address"].field("country").null_count == 2
    for name, value in {"id": 256, "price": 1e300, "at": AT, "by_name": {"k": 2**15}}.items():
        with pytest.raises(
            Refused, match=rf"row 1 for ledger 'log': field '{name}(\.value)?' of class Line does not fit"
        ):
            batch_of(Line, [line, msgspec.structs.replace(line, **{name: value})], FITTING)


@pytest.mark.parametrize(
    ("name", "kind", "words"),
    [
        ("id", pa.string(), "field 'id' of class Line is int, and the column of ledger 'log' is string"),
        ("gift", pa.int8(), "field 'gift' of class Line is bool, and the column of ledger 'log' is int8"),
        ("small", pa.int16(), "field 'small' of class Line is int as int8, and the column of ledger 'log' is int16"),
        ("at", pa.timestamp("us"), "field 'at' of class Line is datetime, and the column of .* is timestamp\\[us\\]"),
        ("colour", pa.int64(), r"field 'colour' of class Line is Colour \(str\), and the column of .* is int64"),
        ("tags", pa.list_(pa.int8()), r"field 'tags\.element' of class Line is str, and the column of .* is int8"),
        ("tags", pa.string(), r"field 'tags' of class Line is list\[str\], and the column of .* is string"),
        (
            "address",
            pa.struct([("city", pa.string())]),
            r"field 'address\.number' .* is int \| None, and ledger 'log' has no",
        ),
        ("by_name", pa.map_(pa.int8(), pa.int8()), r"field 'by_name\.key' of class Line is str, and the column"),
        ("name", None, "field 'name' of class Line is str, and ledger 'log' has no such column.*mergeSchema"),
    ],
    ids=ascii,
)
def test_a_column_that_does_not_fit_is_refused_by_field(name: str, kind: pa.DataType | None, words: str) -> None:
    columns = RowType(Line).columns
    at = columns.get_field_index(name)
    columns = columns.remove(at) if kind is None else columns.set(at, pa.field(name, kind))
    with pytest.raises(Refused, match=words):
        RowType(Line).require_fits(columns, "log")


class Strict(pydantic.BaseModel):
    id: int = pydantic.Field(ge=0)


@dataclass
class Checked:
    id: int

    def __post_init__(self) -> None:
        if self.id < 0:
            raise ValueError("less than nothing")
        if self.id == 0:
            raise StopIteration


def column(name: str, values: list[Any], kind: pa.DataType) -> pa.RecordBatch:
    good = batch_of(Line, [LINE] * len(values))
    return good.set_column(good.schema.get_field_index(name), name, pa.array(values, kind))


@pytest.mark.parametrize(
    ("kind", "batch", "words"),
    [
        (Line, column("id", [1, 2, None], pa.int64()), "field 'id' of class Line is null, expected int"),
        (Line, column("tags", [["a"], [], ["b", None]], pa.list_(pa.string())), r"field 'tags\.element' .* is null"),
        (
            Line,
            column(
                "address", [{"city": "a"}, {"city": "b"}, {"number": 1}], RowType(Line).columns.field("address").type
            ),
            r"field 'address\.city' of class Line is null, expected str",
        ),
        (
            Line,
            column("colour", ["r", "b", "g"], pa.string()),
            r"field 'colour' .* is 'g', expected Colour \(str\): 'r', 'b'",
        ),
        (Line, column("size", ["s", "m", "l"], pa.string()), r"field 'size' .* is 'l', expected Literal"),
        (
            Line,
            column("at", [0, 0, 2**62], pa.timestamp("us", "UTC")),
            "field 'at' of class Line does not fit datetime: the year is not between 1 and 9999",
        ),
        (Line, column("at", [0, 0, 1], pa.timestamp("ns", "UTC")), "field 'at' of class Line does not fit datetime"),
        (Line, column("day", [0, 0, 2**30], pa.date32()), "field 'day' of class Line does not fit date: the year"),
        (
            Line,
            column("by_name", [[], [("a", 1)], [("a", 1), ("a", 2)]], pa.map_(pa.string(), pa.int64())),
            "field 'by_name' of class Line has a key twice",
        ),
        (Checked, pa.record_batch({"id": [1, 2, -3]}), "it cannot be Checked: ValueError: less than nothing"),
        (
            Checked,
            pa.record_batch({"id": [1, 2, 0]}),
            "it cannot be Checked: StopIteration",
        ),
        (
            Strict,
            pa.record_batch({"id": [1, 2, -3]}),
            "it cannot be Strict: id: Input should be greater than or equal to 0",
        ),
    ],
    ids=ascii,
)
def test_a_stored_value_that_does_not_fit_is_refused_by_row(kind: type, batch: pa.RecordBatch, words: str) -> None:
    with pytest.raises(Refused, match=rf"row 2 of the batch: {words}"):
        back(kind, batch)
    assert len(back(kind, batch.slice(0, 2))) == 2


def test_a_wrong_model_far_behind_has_its_row() -> None:
    numbers = [*range(1000), -1]
    with pytest.raises(Refused, match="row 1000 of the batch: it cannot be Strict"):
        back(Strict, pa.record_batch({"id": numbers}))


def test_not_a_number_is_kept() -> None:
    found = back(Line, batch_of(Line, [msgspec.structs.replace(LINE, price=float(text)) for text in ("nan", "-inf")]))
    assert re.sub(r"\s", "", str([line.price for line in found])) == "[nan,-inf]"


def test_columns_whose_names_differ_in_case_are_two_columns() -> None:
    """As with dictionaries. Spark refuses to read such a ledger."""

    class Cases(msgspec.Struct):
        id: int
        ID: str

    assert back(Cases, batch_of(Cases, [Cases(1, "a")])) == [Cases(1, "a")]


class ByName(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(validate_by_alias=False, validate_by_name=True)
    id: int = pydantic.Field(default=0, alias="Id")


class Outer(pydantic.BaseModel):
    inner: ByName
    others: list[ByName]


def test_a_model_that_is_validated_by_name_keeps_its_values() -> None:
    objects = [Outer(inner=ByName(id=7), others=[ByName(id=8)])]
    assert back(Outer, batch_of(Outer, objects)) == objects
    assert batch_of(ByName, [ByName(id=7)]).to_pylist() == [{"Id": 7}]
    assert back(ByName, batch_of(ByName, [ByName(id=7)])) == [ByName(id=7)]


class NoOffset(tzinfo):
    def __repr__(self) -> str:  # part of a test's name
        return "NoOffset()"

    def utcoffset(self, _: datetime | None) -> timedelta | None:
        return None


class Times(msgspec.Struct):
    at: datetime = AT
    hour: time = time(1)
    by_share: dict[Annotated[float, pa.float32()], int] = {}
    by_time: dict[datetime, int] = {}
    nested: list[dict[tuple[datetime, ...], int]] = []


PARIS = ZoneInfo("Europe/Paris")
FOLDED = [datetime(2026, 10, 25, 2, 30, tzinfo=PARIS, fold=1), datetime(2026, 10, 25, 1, 30, tzinfo=UTC)]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"at": AT.replace(tzinfo=timezone(timedelta(hours=1, microseconds=7)))}, "'at' .* no whole number of minutes"),
        ({"at": AT.replace(tzinfo=NoOffset())}, "'at' .*expected a datetime with a time zone"),
        ({"at": datetime.min.replace(tzinfo=timezone(timedelta(hours=1)))}, "'at' .* the year is not between"),
        ({"at": datetime(9999, 12, 31, 23, tzinfo=timezone(-timedelta(hours=5)))}, "'at' .* the year is not between"),
        ({"hour": time(1, tzinfo=PARIS)}, "'hour' .* without a time zone"),
        ({"by_share": {0.1: 1, 0.1 + 1e-12: 2}}, "'by_share' .* has a key twice"),
        ({"by_time": dict.fromkeys(FOLDED, 1)}, "'by_time' .* has a key twice"),
        ({"nested": [{}, {(FOLDED[0],): 1, (FOLDED[1],): 2}]}, r"'nested\.element' .* has a key twice"),
    ],
    ids=ascii,
)
def test_a_value_that_its_column_would_change_is_refused(change: dict[str, Any], words: str) -> None:
    good = Times(by_share={0.5: 1}, by_time={AT: 1}, nested=[{(AT,): 1}])
    assert back(Times, batch_of(Times, [good])) == [good]
    with pytest.raises(Refused, match=rf"row 1 for ledger 'log': field {words}"):
        batch_of(Times, [good, msgspec.structs.replace(good, **change)])


class Spans(msgspec.Struct):
    took: timedelta
    hour: time


@pytest.mark.parametrize(("took", "hour", "name"), [(-(2**63), 0, "took"), (0, 24 * 3600 * 10**6, "hour")])
def test_a_stored_time_that_python_lacks_is_refused(took: int, hour: int, name: str) -> None:
    numbers = {"took": pa.array([0, took]).view(pa.duration("us")), "hour": pa.array([0, hour]).view(pa.time64("us"))}
    with pytest.raises(Refused, match=f"row 1 of the batch: field '{name}' of class Spans does not fit"):
        back(Spans, pa.record_batch(numbers))


@dataclass
class Doubled:
    id: int
    share: float = float("nan")

    def __post_init__(self) -> None:
        self.id += self.id > 5


@dataclass
class Holder:
    inner: list[Doubled | None]


def test_an_object_that_its_class_changes_or_refuses_is_not_appended() -> None:
    good = [Doubled(1), Doubled(2)]
    assert len(batch_of(Doubled, good)) == 2
    changed = Doubled(7)
    with pytest.raises(Refused, match=r"row 2 .* field 'id' of class Doubled is 8, and a read makes it 9"):
        batch_of(Doubled, [*good, changed])
    with pytest.raises(Refused, match=r"row 1 .* field 'inner\.element\.id' of class Holder is 8, and a read"):
        batch_of(Holder, [Holder([*good, None]), Holder([None, changed])])
    with pytest.raises(Refused, match=r"row 1 .* it cannot be Strict: id: Input should be"):
        batch_of(Strict, [Strict(id=1), Strict.model_construct(id=-1)])


@dataclass
class Mapped(dict[str, int]):
    id: int


def test_a_class_that_is_no_row_is_refused_by_name() -> None:
    with pytest.raises(Refused, match="class Mapped has values outside of its fields"):
        RowType(Mapped)
    with pytest.raises(Refused, match="class K has a constructor without a signature: 'class'"):
        RowType(msgspec.defstruct("K", [("class", int)]))


def test_an_object_of_an_earlier_definition_is_named() -> None:
    kinds = [msgspec.defstruct("Q", [("id", int)]) for _ in range(2)]
    for call in (lambda: batch_of(kinds[0], [kinds[1](1)]), lambda: RowType(kinds[0]).listed(kinds[1](1), "log")):
        with pytest.raises(Refused, match=r"class of the ledger, which has the same name. .* make the ledger again"):
            call()


def test_a_float_of_32_bits_has_its_own_name() -> None:
    narrow = msgspec.defstruct("N", [("share", Annotated[float, pa.float32()])])
    with pytest.raises(Refused, match="is float as float32, and the column of ledger 'log' is float64"):
        RowType(narrow).require_fits(pa.schema([("share", pa.float64())]), "log")
