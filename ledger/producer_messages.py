"""What producers ask beside appending: the partitions of a ledger, and the last sequence id that is known of them.

A part of `ledger.protocol`, whose rules hold here too.
"""

from __future__ import annotations

import msgspec

from ledger.wire_names import Name
from ledger.wire_numbers import NotNegative


class ChangePartitions(msgspec.Struct, frozen=True):
    """Increase the number of partitions of a partitioned ledger."""

    name: Name
    partitions: NotNegative


class PartitionCount(msgspec.Struct, frozen=True):
    """The number of partitions; 0 for a ledger that has none, or that is not there."""

    partitions: NotNegative


class AskSequence(msgspec.Struct, frozen=True):
    """The last sequence id of a producer in a ledger."""

    ledger: Name
    producer: Name


class LastSequence(msgspec.Struct, frozen=True):
    """The highest sequence id that is durable, -1 for none; None for a ledger without de-duplication."""

    sequence_id: int | None
