"""Values of Python that Arrow would change on their way into a column: refused before they are appended.

Arrow refuses most values that do not fit a given type. It silently changes some others:

    1.5 or Decimal("1.5") to a whole number         the fraction
    a datetime to a date                            the time of the day
    a time to a unit that is too coarse for it      the rest of the second
    a large number to a float of 32 or 16 bits      becomes infinite
    a mapping with a key that its struct lacks      the key and its value

Rule
- A value passes if it is equal to the stored value. So 2.0 may become 2, and midnight may become a date. Exceptions: a
  number may be rounded to the nearest float, and the zone of a datetime is not compared.
- Columns whose type holds every value that Arrow accepts, such as text or double, are not looked at.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, time, timedelta
from decimal import Decimal
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused

_MICROS = {"s": 1_000_000, "ms": 1_000}
_MIDNIGHT = time()
_SIMPLE: set[type] = {int, str, bytes, bool, type(None)}


def require_kept(values: Iterable[Any], kind: pa.DataType, path: str) -> None:
    """Raise Refused if Arrow's conversion of the values to `kind` changes one of them, at any depth."""
    if pa.types.is_nested(kind):
        _require_parts([value for value in values if value is not None], kind, path)
        return
    kept, values = _kept_types(kind), list(values)
    if kept is None or not set(map(type, values)) - kept:
        return
    for value in values:
        if value is not None and _changes(value, kind):
            text = f"the values of column {path!r} cannot have type {kind}: the value {value!r} would change"
            raise Refused(text, hint="Correct the value; nothing was appended")


def _require_parts(found: list[Any], kind: pa.DataType, path: str) -> None:
    """Raise Refused if the conversion changes a field, a key, or an element of these values."""
    if pa.types.is_struct(kind):
        rows = [value for value in found if isinstance(value, Mapping)]
        _require_known_keys(rows, kind, path)
        for field in kind:
            require_kept([row.get(field.name) for row in rows], field.type, f"{path}.{field.name}")
    elif pa.types.is_map(kind):
        pairs = [pair for value in found for pair in (value.items() if isinstance(value, Mapping) else value)]
        for at, inner, part in ((0, kind.key_type, "key"), (1, kind.item_type, "value")):
            require_kept([pair[at] for pair in pairs], inner, f"{path}.{part}")
    else:
        require_kept(chain.from_iterable(found), kind.value_type, f"{path}.element")


def _require_known_keys(rows: list[Mapping[str, Any]], kind: pa.StructType, path: str) -> None:
    names = {field.name for field in kind}
    if unknown := set[str]().union(*rows) - names:
        raise Refused(
            f"a value of column {path!r} has the field {next(iter(unknown))!r}, "
            f"and the column has {', '.join(sorted(names)) or 'no fields'}",
            hint="Leave the field out, or append to another ledger. Nothing was appended",
        )


def _kept_types(kind: pa.DataType) -> set[type] | None:
    """Return the types of Python whose values stay the same in a column of `kind`. None: the values of all types."""
    if pa.types.is_temporal(kind):
        is_fine = not pa.types.is_date(kind) and kind.unit not in _MICROS
        return _SIMPLE | ({datetime, time, timedelta} if is_fine else set())
    is_narrow = pa.types.is_integer(kind) or (pa.types.is_floating(kind) and kind.bit_width < 64)
    return _SIMPLE if is_narrow else None


def _changes(value: Any, kind: pa.DataType) -> bool:
    """Return whether a value, which Arrow accepts, differs from what Arrow stores in a column of `kind`."""
    if pa.types.is_date(kind) and isinstance(value, datetime):
        return value.time() != _MIDNIGHT
    if pa.types.is_floating(kind):
        return not isinstance(value, int) and _overflows(value, kind)
    micros = getattr(value, "microsecond", getattr(value, "microseconds", None))
    if micros is None:
        return isinstance(value, (float, Decimal, np.floating)) and int(value) != value
    return bool(micros % _MICROS.get(getattr(kind, "unit", ""), 1))


def _overflows(value: Any, kind: pa.DataType) -> bool:
    return math.isfinite(value) and not math.isfinite(pa.array([value], kind)[0].as_py())
