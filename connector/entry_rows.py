"""From entries to batches: the reader that a shape asks for, wherever the entries come from."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector.metadata_columns import Topic
from connector.row_shape import RowShape
from ledger.row_selection import RowSelection

if TYPE_CHECKING:
    from connector.arrow_rows import ArrowRows
    from connector.pulsar_rows import PulsarRows


def entry_rows(topic: Topic, shape: RowShape, selection: RowSelection | None = None) -> ArrowRows | PulsarRows:
    """What turns `(position, parsed entry)` into record batches of exactly the shape's schema, in order.

    Rows of columns are selected on the way; messages are theirs to select who know their places.
    """
    if shape.raw:
        from connector.pulsar_rows import PulsarRows

        return PulsarRows(topic, shape)
    from connector.arrow_rows import ArrowRows

    return ArrowRows(topic, shape, selection)
