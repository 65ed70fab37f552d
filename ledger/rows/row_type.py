"""Rows as objects of a user's class: the columns of the class, and the conversion of objects to columns and back.

    orders = RowType(Order)
    table = orders.table([Order(1, "tea")], None, "ledger 'orders'")
    for order in orders.rows(table.to_batches()[0], lambda row: f"row {row} of the table"): ...

Rules
- A type is compared with a ledger's columns before a row is converted. A column that the class lacks is not read, and a
  new row has null there. A field that the ledger lacks is refused.
- A value that does not fit is refused. The error names the row, the field and the value. Then nothing was converted.
- A pickle of a type has only the class. So the class must be importable, or the pickler must store it (cloudpickle).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic

import pyarrow as pa

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.message.columns import typed_type
from pyspark_ledger.ledger.rows.annotations import record_of
from pyspark_ledger.ledger.rows.class_fields import is_row_class
from pyspark_ledger.ledger.rows.field_types import ANOTHER, Mismatch, WrongValue
from pyspark_ledger.ledger.rows.scalar_rules import arrow_name

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # of the type checker, which knows the default of a type parameter

    Row = TypeVar("Row", default=dict[str, Any])
else:
    from typing import TypeVar

    Row = TypeVar("Row")

_TABLE_ROWS = 64 * 1024  # rows that are converted together, so that a column of text stays below Arrow's 2 GiB


class RowType(Generic[Row]):
    """Class of rows, with the `columns` that a new ledger gets."""

    def __init__(self, kind: type[Row]) -> None:
        """Read the annotations of a class. Raises Refused if its objects cannot be rows."""
        if not is_row_class(kind):
            raise Refused(
                f"{kind!r} is no class of rows",
                hint="Use a msgspec Struct, a dataclass, a TypedDict or a pydantic model",
            )
        self.kind = kind
        self._record = record_of(kind)
        self.columns = pa.schema(list(self._record.column))
        # The columns of the last comparison, and the same as a struct with a type for each column.
        self._fit: tuple[pa.Schema, pa.StructType] | None = None

    def __repr__(self) -> str:
        return f"RowType({self.kind.__name__})"

    def __reduce__(self) -> tuple[type[RowType[Row]], tuple[type[Row]]]:
        return RowType, (self.kind,)

    def require_fits(self, columns: pa.Schema, ledger: str) -> None:
        """Raise Refused if the class does not fit these columns. The error names the field and both types."""
        self._fitted(columns, ledger)

    def listed(self, objects: Any, ledger: str) -> list[Any]:
        """Return one object, or several objects, as a list. Raises Refused for anything else."""
        if isinstance(objects, self._record.row_class):
            return [objects]
        if isinstance(objects, (str, bytes, Mapping)) or not isinstance(objects, Iterable):
            same = type(objects).__name__ == self.kind.__name__
            raise Refused(
                f"{type(objects).__name__} was given for ledger {ledger!r}, which has objects of "
                f"{ANOTHER if same else self.kind.__name__}",
                hint="Append objects of this class, or open the ledger without a type",
            )
        return list(objects)

    def table(self, objects: list[Row], columns: pa.Schema | None, ledger: str) -> pa.Table:
        """Return objects as a table with the ledger's `columns`; None for a ledger that has none yet.

        A column without a type gets the type of its field. Raises Refused, which names the row and the field.
        """
        parts = range(0, max(len(objects), 1), _TABLE_ROWS)
        arrays = [self.array(objects[at : at + _TABLE_ROWS], columns, ledger, first=at) for at in parts]
        return pa.Table.from_batches([pa.RecordBatch.from_struct_array(array) for array in arrays])

    def array(self, objects: list[Row], columns: pa.Schema | None, ledger: str, *, first: int = 0) -> pa.StructArray:
        """Return objects as an array of structs. See `table`. `first` is the number of the first object."""
        wanted = self._fitted(self.columns if columns is None else columns, ledger)
        try:
            array = self._record.array(objects, wanted)
            self._record.require_kept(array)
        except WrongValue as wrong:
            place = f"row {first + wrong.row} for ledger {ledger!r}"
            raise self._refused(place, wrong, "Correct the value; nothing was appended") from wrong
        except Mismatch as untyped:
            raise Refused(
                f"field {untyped.path!r} of class {self.kind.__name__} does not declare the digits of its Decimal",
                hint="Declare them: Annotated[Decimal, pyarrow.decimal128(18, 2)]",
            ) from untyped
        return array

    def rows(self, batch: pa.RecordBatch, place: Callable[[int], str]) -> Iterator[Row]:
        """Yield the rows of a batch, whose columns fit, as objects of the class.

        `place` returns the name of a row, counted from 0 in the batch, for errors. Raises Refused for a value that does
        not fit its field, such as a null in a field that is not optional.
        """
        if not batch.num_rows:
            return
        try:
            yield from self._record.objects(batch.to_struct_array())
        except WrongValue as wrong:
            hint = "Correct the class, or read the columns with `batches`"
            raise self._refused(place(wrong.row), wrong, hint) from wrong

    def _fitted(self, columns: pa.Schema, ledger: str) -> pa.StructType:
        """Return columns as a struct, with the type of the field for a column that has none. Raises Refused."""
        fit = self._fit  # any thread may replace it
        if fit is not None and fit[0].equals(columns):
            return fit[1]
        try:
            self._record.require_fits(pa.struct(list(columns)))
        except Mismatch as wrong:
            field = f"field {wrong.path!r} of class {self.kind.__name__} is {wrong.name}"
            if wrong.found is None:
                raise Refused(
                    f"{field}, and ledger {ledger!r} has no such column",
                    hint="Leave the field out, or add the column with Spark's option mergeSchema",
                ) from wrong
            raise Refused(
                f"{field}, and the column of ledger {ledger!r} is {arrow_name(wrong.found)}",
                hint="Correct the type of the field, or use another ledger",
            ) from wrong
        own = {field.name: field.type for field in self.columns}
        typed = [field.with_type(typed_type(field.type, own.get(field.name, field.type))) for field in columns]
        self._fit = columns, pa.struct(typed)
        return self._fit[1]

    def _refused(self, place: str, wrong: WrongValue, hint: str) -> Refused:
        field = f"field {wrong.path!r} of class {self.kind.__name__}" if wrong.path else "it"
        return Refused(f"{place}: {field} {wrong.reason}", hint=hint)
