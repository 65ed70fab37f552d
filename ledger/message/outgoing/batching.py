"""Limits of the batches of a producer of messages."""

from __future__ import annotations

import msgspec

from pyspark_ledger.ledger.errors import Refused


class Batching(msgspec.Struct, frozen=True):
    """Limits of a batch, with the names of Pulsar's producers. A delay of 0 sends each message alone."""

    batching_max_messages: int = 1000
    batching_max_bytes: int = 128 * 1024
    batching_max_publish_delay_ms: int = 1

    def __post_init__(self) -> None:
        least = {"batching_max_messages": 1, "batching_max_bytes": 1, "batching_max_publish_delay_ms": 0}
        for name, bound in least.items():
            require_at_least(name, getattr(self, name), bound)


def require_at_least(name: str, value: object, least: int) -> None:
    """Raise Refused if a value is not a whole number, or is smaller than `least`."""
    if not isinstance(value, int) or value < least:
        raise Refused(f"{name} is {value!r}, expected a whole number of at least {least}")
