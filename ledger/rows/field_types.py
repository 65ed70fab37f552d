"""Types of the fields of a user's class: which columns fit, and the conversion of values to a column and back.

Rules
- All values of a column are converted together. Only the search for a wrong value loops over rows.
- Null fits only `T | None`, at every depth.
- An object must have exactly its class. Reason: a subclass may have more fields, whose values would be lost.
- A conversion of a part of a column, such as the elements of lists, raises WrongValue with the row of the whole column.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from itertools import chain, compress, repeat
from operator import attrgetter, is_not, methodcaller
from types import NoneType
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.types as of

from pyspark_ledger.ledger.rows.class_fields import Build, BuildFailure
from pyspark_ledger.ledger.rows.scalar_rules import FAULTS, ScalarRule, arrow_name

_EXACT_KEYS = frozenset({bool, int, str, bytes})  # classes of keys that a column keeps as they are
ANOTHER = "the class of the ledger, which has the same name. After a new definition, make the ledger again"
_SHOWN = 80  # an error shows this many characters of a value


class WrongValue(Exception):
    """Value that does not fit its field: its row, counted from 0, the field's path, and the reason."""

    def __init__(self, row: int, path: str, reason: str) -> None:
        super().__init__(row, path, reason)
        self.row = row
        self.path = path
        self.reason = reason


class Mismatch(Exception):
    """Column of type `found` that does not fit a field. `found` is None if there is no such column."""

    def __init__(self, path: str, name: str, found: pa.DataType | None) -> None:
        super().__init__(path, name, found)
        self.path = path
        self.name = name
        self.found = found


class FieldType(ABC):
    """Type of a field. `name` is its annotation, `column` the type of a new column, and `path` names the field."""

    def __init__(self, path: str, name: str, column: pa.DataType, parts: Sequence[FieldType] = ()) -> None:
        self.path = path
        self.name = name
        self.column = column
        self.runs_code: bool = any(part.runs_code for part in parts)  # of a user's class, when objects are made

    def require_fits(self, kind: pa.DataType) -> None:
        """Raise Mismatch unless a column of type `kind` fits. A column without a type fits every field."""
        if not of.is_null(kind):
            self._require_fits(kind)

    def _require_fits(self, kind: pa.DataType) -> None:
        raise Mismatch(self.path, self.name, kind)

    @abstractmethod
    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        """Return values as a column of type `kind`, which fits. Raises WrongValue; Mismatch without digits."""

    def values(self, array: pa.Array) -> list[Any]:
        """Return the values of a column whose type fits. Raises WrongValue, also for a null."""
        if array.null_count:
            row = int(np.argmin(np.asarray(array.is_valid())))
            raise WrongValue(row, self.path, f"is null, expected {self.name}")
        return self._present(array) if len(array) else []

    @abstractmethod
    def _present(self, array: pa.Array) -> list[Any]:
        """Return the values of a column that has values, and no null. Raises WrongValue."""

    def _require_classes(self, values: list[Any], classes: Iterable[type], also: Callable[[type], bool]) -> None:
        """Raise WrongValue for the first value whose class is not among `classes`, and not accepted by `also`."""
        for other in set(map(type, values)).difference(classes):
            if not also(other):
                row = list(map(type, values)).index(other)
                found = "None" if other is NoneType else f"{_shown(values[row])} ({other.__name__})"
                same = any(other.__name__ == kind.__name__ for kind in classes)
                raise WrongValue(row, self.path, f"is {found}, expected {ANOTHER if same else self.name}")


class Nullable(FieldType):
    """Type `T | None`."""

    def __init__(self, inner: FieldType) -> None:
        super().__init__(inner.path, f"{inner.name} | None", inner.column, [inner])
        self._inner = inner

    def _require_fits(self, kind: pa.DataType) -> None:
        self._inner.require_fits(kind)

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        valid = np.fromiter(map(is_not, values, repeat(None)), np.bool_, len(values))
        if valid.all():
            return self._inner.array(values, kind)
        try:
            found = self._inner.array(list(compress(values, valid)), kind)
        except WrongValue as wrong:
            raise WrongValue(int(np.flatnonzero(valid)[wrong.row]), wrong.path, wrong.reason) from wrong
        return found.take(pa.array(_places(valid), mask=~valid))

    def values(self, array: pa.Array) -> list[Any]:
        if array.null_count == len(array):
            return [None] * len(array)
        if not array.null_count:
            return self._inner.values(array)
        valid = np.asarray(array.is_valid())
        try:
            found = self._inner.values(array.drop_null())
        except WrongValue as wrong:
            raise WrongValue(int(np.flatnonzero(valid)[wrong.row]), wrong.path, wrong.reason) from wrong
        found.append(None)  # at place -1
        return list(map(found.__getitem__, _places(valid).tolist()))

    def _present(self, array: pa.Array) -> list[Any]:
        return self._inner.values(array)


class Scalar(FieldType):
    """Type of single values. With `exact`, only a column of exactly this type fits."""

    def __init__(self, path: str, kind: type, rule: ScalarRule, exact: pa.DataType | None) -> None:
        name = kind.__name__ if exact is None else f"{kind.__name__} as {arrow_name(exact)}"
        super().__init__(path, name, rule.column if exact is None else exact)
        self._kind, self._rule, self._exact = kind, rule, exact

    def _require_fits(self, kind: pa.DataType) -> None:
        if kind != self._exact if self._exact is not None else not self._rule.fits(kind):
            raise Mismatch(self.path, self.name, kind)

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        rule = self._rule
        if of.is_null(kind):
            raise Mismatch(self.path, self.name, kind)
        self._require_classes(
            values,
            (self._kind, *rule.also),
            lambda other: issubclass(other, self._kind) and not issubclass(other, rule.never),
        )
        if rule.zoned is not None:
            self._require_zones(values, zoned=rule.zoned)
        try:
            return rule.array(values, kind)
        except FAULTS as wrong:
            raise self._first_wrong(len(values), lambda row: rule.array([values[row]], kind), wrong) from wrong

    def _present(self, array: pa.Array) -> list[Any]:
        try:
            return self._rule.values(array)
        except FAULTS as wrong:
            raise self._first_wrong(len(array), lambda row: self._rule.values(array.slice(row, 1)), wrong) from wrong

    def _require_zones(self, values: list[Any], *, zoned: bool) -> None:
        # A zone whose offset is None is no zone. A column without zones would lose any zone.
        zones = map(methodcaller("utcoffset") if zoned else attrgetter("tzinfo"), values)
        has_zone = list(map(is_not, zones, repeat(None)))
        if (not zoned) in has_zone:
            row = has_zone.index(not zoned)
            wanted = f"a {self.name} {'with' if zoned else 'without'} a time zone"
            raise WrongValue(row, self.path, f"is {_shown(values[row])}, expected {wanted}")

    def _first_wrong(self, rows: int, convert: Callable[[int], object], error: Exception) -> WrongValue:
        for row in range(rows):
            try:
                convert(row)
            except FAULTS as wrong:
                return WrongValue(row, self.path, f"does not fit {self.name}: {wrong}")
        return WrongValue(0, self.path, f"does not fit {self.name}: {error}")


class Members(FieldType):
    """Type of an Enum or a Literal. A column has the values of the members. `kind` is the Enum."""

    def __init__(self, inner: FieldType, name: str, members: dict[Any, Any], kind: type | None) -> None:
        super().__init__(inner.path, f"{name} ({inner.name})", inner.column)
        self._inner, self._members, self._kind = inner, members, kind

    def _require_fits(self, kind: pa.DataType) -> None:
        try:
            self._inner.require_fits(kind)
        except Mismatch as wrong:
            raise Mismatch(self.path, self.name, wrong.found) from wrong

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        if self._kind is None:
            array = self._inner.array(values, kind)
            self._of_values(values)
            return array
        self._require_classes(values, (self._kind,), lambda _: False)
        return self._inner.array(list(map(attrgetter("_value_"), values)), kind)

    def _present(self, array: pa.Array) -> list[Any]:
        return self._of_values(self._inner.values(array))

    def _of_values(self, values: list[Any]) -> list[Any]:
        try:
            return list(map(self._members.__getitem__, values))
        except KeyError as wrong:
            known = ", ".join(map(repr, self._members))
            reason = f"is {_shown(wrong.args[0])}, expected {self.name}: {known}"
            raise WrongValue(values.index(wrong.args[0]), self.path, reason) from wrong


class Lists(FieldType):
    """Type of lists, or of tuples of any length."""

    def __init__(self, path: str, inner: FieldType, kind: type) -> None:
        name = f"list[{inner.name}]" if kind is list else f"tuple[{inner.name}, ...]"
        super().__init__(path, name, pa.list_(inner.column), [inner])
        self._inner, self._kind = inner, kind

    def _require_fits(self, kind: pa.DataType) -> None:
        if not of.is_list(kind) and not of.is_large_list(kind):
            raise Mismatch(self.path, self.name, kind)
        self._inner.require_fits(kind.value_type)

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        self._require_classes(values, (self._kind,), lambda _: False)
        ends = _ends(values)
        flat = _of_lists(ends, self._inner.array, list(chain.from_iterable(values)), kind.value_type)
        if of.is_large_list(kind):
            return pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), flat, type=kind)
        return pa.ListArray.from_arrays(pa.array(ends, pa.int32()), flat, type=kind)

    def _present(self, array: pa.Array) -> list[Any]:
        ends = np.asarray(array.offsets)
        flat = _of_lists(ends, self._inner.values, _between(array.values, ends))
        lists = _lists(ends, flat)
        return list(lists if self._kind is list else map(tuple, lists))


class Maps(FieldType):
    """Type of dictionaries."""

    def __init__(self, path: str, key: FieldType, item: FieldType) -> None:
        super().__init__(path, f"dict[{key.name}, {item.name}]", pa.map_(key.column, item.column), [key, item])
        self._key, self._item = key, item

    def _require_fits(self, kind: pa.DataType) -> None:
        if not of.is_map(kind):
            raise Mismatch(self.path, self.name, kind)
        self._key.require_fits(kind.key_type)
        self._item.require_fits(kind.item_type)

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        self._require_classes(values, (dict,), lambda _: False)
        ends = _ends(values)
        names = list(chain.from_iterable(values))
        keys = _of_lists(ends, self._key.array, names, kind.key_type)
        flat = list(chain.from_iterable(map(dict.values, values)))
        items = _of_lists(ends, self._item.array, flat, kind.item_type)
        if not _EXACT_KEYS.issuperset(map(type, names)):  # two keys may be the same in the column
            self._require_once(map(set, _lists(ends, _of_lists(ends, self._key.values, keys))), ends)
        return pa.MapArray.from_arrays(pa.array(ends, pa.int32()), keys, items, kind)

    def _present(self, array: pa.Array) -> list[Any]:
        ends = np.asarray(array.offsets)
        keys = _of_lists(ends, self._key.values, _between(array.keys, ends))
        items = _of_lists(ends, self._item.values, _between(array.items, ends))
        found: list[Any] = list(map(dict, map(zip, _lists(ends, keys), _lists(ends, items))))
        self._require_once(found, ends)
        return found

    def _require_once(self, found: Iterable[Sized], ends: npt.NDArray[Any]) -> None:
        """Raise WrongValue for the first map that has fewer keys in Python than in the column."""
        lost = np.flatnonzero(np.fromiter(map(len, found), np.int64, len(ends) - 1) != np.diff(ends))
        if len(lost):
            raise WrongValue(int(lost[0]), self.path, f"has a key twice in its column, expected {self.name}")


class Record(FieldType):
    """Type of a class's objects. A column is a struct. All columns of a ledger are one struct, too.

    `fields` has, for each column, the function that gets its values from an object, and their type.
    """

    def __init__(
        self,
        path: str,
        kind: type,
        fields: list[tuple[str, Callable[[Any], Any], FieldType]],
        build: Build,
        *,
        runs_code: bool,
    ) -> None:
        self._fields, self._build = fields, build
        self.row_class: type = dict if issubclass(kind, dict) else kind  # objects of a TypedDict are dictionaries
        columns = [pa.field(name, inner.column) for name, _, inner in fields]
        super().__init__(path, kind.__name__, pa.struct(columns), [inner for _, _, inner in fields])
        self.runs_code |= runs_code

    def _require_fits(self, kind: pa.DataType) -> None:
        if not of.is_struct(kind):
            raise Mismatch(self.path, self.name, kind)
        kinds = {field.name: field.type for field in kind}
        for name, _, inner in self._fields:
            if name not in kinds:
                raise Mismatch(inner.path, inner.name, None)
            inner.require_fits(kinds[name])

    def array(self, values: list[Any], kind: pa.DataType) -> pa.Array:
        self._require_classes(values, (self.row_class,), lambda _: False)
        if self.row_class is dict:
            self._require_no_more_keys(values)
        kinds = {field.name: field.type for field in kind}
        arrays = {
            name: inner.array(self._of_field(values, get, inner.path), kinds[name]) for name, get, inner in self._fields
        }
        columns = [arrays[field.name] if field.name in arrays else pa.nulls(len(values), field.type) for field in kind]
        return pa.StructArray.from_arrays(columns, fields=list(kind))

    def objects(self, array: pa.Array) -> Iterator[Any]:
        """Yield the objects of a struct column that has values, and no null. Raises WrongValue."""
        columns = [inner.values(array.field(name)) for name, _, inner in self._fields]
        try:
            yield from self._build(columns)
        except BuildFailure as wrong:
            raise WrongValue(wrong.row, self.path, f"cannot be {self.name}: {wrong.reason}") from wrong

    def require_kept(self, array: pa.StructArray) -> None:
        """Make the objects of a column again. Raises WrongValue if that fails, or changes a value of a field.

        Reason: a class may convert or check its values each time that an object is made. Of classes that run no code of
        their own, only the first object is made.
        """
        array = array if self.runs_code else array.slice(0, 1)
        again = self.array(self.values(array), array.type)
        if again.equals(array):
            return
        for row, pair in enumerate(zip(array, again, strict=True)):
            for path, before, after in _changes(self.path, *map(methodcaller("as_py"), pair)):
                reason = f"is {_shown(before)}, and a read makes it {_shown(after)}: the class changes it"
                raise WrongValue(row, path, reason)

    def _present(self, array: pa.Array) -> list[Any]:
        return list(self.objects(array))

    def _require_no_more_keys(self, values: list[Any]) -> None:
        names = {name for name, _, _ in self._fields}
        for row, more in enumerate(map(set.difference, map(set, values), repeat(names))):
            if more:
                raise WrongValue(row, self.path, f"has the key {min(more)!r}, expected {self.name}")

    def _of_field(self, values: list[Any], get: Callable[[Any], Any], path: str) -> list[Any]:
        """Return the values of a field. Raises WrongValue for an object without the field."""
        found: list[Any] = []
        try:
            found.extend(map(get, values))
        except (AttributeError, KeyError) as wrong:
            raise WrongValue(len(found), path, "has no value") from wrong
        return found


def _changes(path: str, before: Any, after: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield the innermost parts of a value that are changed: path, value before, value after."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in before:
            yield from _changes(f"{path}.{name}" if path else name, before[name], after[name])
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for pair in zip(before, after, strict=True):
            yield from _changes(f"{path}.element", *pair)
    elif repr(before) != repr(after):  # as text, in which NaN is equal to NaN
        yield path, before, after


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _places(valid: npt.NDArray[np.bool_]) -> npt.NDArray[np.int64]:
    """Return the place of each valid row among the valid rows; -1 for other rows."""
    return np.where(valid, np.cumsum(valid) - 1, -1)


def _ends(values: list[Any]) -> npt.NDArray[np.int64]:
    """Return 0, and the end of each list in the joined lists."""
    ends = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(np.fromiter(map(len, values), np.int64, len(values)), out=ends[1:])
    return ends


def _between(elements: pa.Array, ends: npt.NDArray[Any]) -> pa.Array:
    return elements.slice(int(ends[0]), int(ends[-1] - ends[0]))


def _lists(ends: npt.NDArray[Any], elements: list[Any]) -> Iterator[list[Any]]:
    places: list[int] = (ends - ends[0]).tolist()
    return map(elements.__getitem__, map(slice, places, places[1:]))


def _of_lists(ends: npt.NDArray[Any], convert: Callable[..., Any], *arguments: Any) -> Any:
    """Convert the joined elements of lists. The row of a WrongValue becomes the row of its list."""
    try:
        return convert(*arguments)
    except WrongValue as wrong:
        row = int(np.searchsorted(ends - ends[0], wrong.row, side="right")) - 1
        raise WrongValue(row, wrong.path, wrong.reason) from wrong
