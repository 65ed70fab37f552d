"""Producer of messages for a partitioned ledger. It has a producer for each partition, and routes every message.

Rules, as in Pulsar's clients
- The key of a message selects its partition (`ledger.partition_routing`). So messages with the same key keep their
  order.
- Messages without a key are sent to the partitions in rotation. The producer's name selects the first partition. The
  producer changes to the next partition after each sent batch, and not after each message, so that batches are full.
- Exception: without a key, an explicit sequence id selects the partition, as the id modulo the number of partitions.
  Reason: each partition has its own de-duplication, so a repeated message must go to the same partition.
- The producer ignores partitions that are added later. So during its life a key never changes its partition.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import pairwise
from typing import Generic, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from pyspark_ledger.ledger.client.message_producer import MessageProducer
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.message.batch_encoder import batch_edges
from pyspark_ledger.ledger.message.outgoing.batching import Batching
from pyspark_ledger.ledger.message.outgoing.message import require_sequence_id
from pyspark_ledger.ledger.partition_routing import (
    murmur3_32,
    partition_for_key,
    partitions_for_keys,
    require_hashing_scheme,
)
from pyspark_ledger.ledger.position import MessageId
from pyspark_ledger.ledger.rows.row_type import Row


class PartitionedProducer(Generic[Row]):
    """Producer of messages to the partitions of one ledger. Any thread may send."""

    def __init__(
        self, name: str, parts: Sequence[MessageProducer[Row]], batching: Batching, hashing_scheme: str = "murmur3_32"
    ) -> None:
        require_hashing_scheme(hashing_scheme)
        self.name = name
        self._parts = parts
        self._batching = batching
        self._hashing_scheme = hashing_scheme
        self._choosing = threading.Lock()
        self._turn = murmur3_32(name) % len(parts)
        self._batches = parts[self._turn].batches
        self._last_given = -1

    def __repr__(self) -> str:
        return f"PartitionedProducer({self.name!r}, {len(self._parts)} partitions)"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close()

    def send(
        self,
        value: Row | bytes | None,
        *,
        key: str | bytes | None = None,
        properties: Mapping[str, str] | None = None,
        event_time_ms: int = 0,
        ordering_key: bytes | None = None,
        sequence_id: int | None = None,
    ) -> Future[MessageId]:
        """Send a message to the partition of its key, or in rotation. See `MessageProducer.send`.

        Without a key, an explicit sequence id selects the partition: the id modulo the number of partitions. A repeated
        message therefore goes to the partition that knows its id, unless partitions were added since. Explicit ids must
        rise over all partitions.
        """
        options = {"properties": properties, "event_time_ms": event_time_ms, "ordering_key": ordering_key}
        if sequence_id is not None:
            return self._send_numbered(value, key, sequence_id, options)
        if isinstance(key, str | bytes):
            part = self._parts[partition_for_key(key, len(self._parts), self._hashing_scheme)]
            return part.send(value, key=key, **options)  # type: ignore[arg-type]  # the types of the parameters
        with self._choosing:
            return self._part_in_turn().send(value, key=key, **options)  # type: ignore[arg-type]  # see above

    def send_column(
        self, values: pa.Array, *, keys: pa.Array | None = None, event_times_ms: pa.Array | None = None
    ) -> Future[list[MessageId]]:
        """Send a message for each value of a column, without a Python loop.

        The future returns the id of the last message in each partition.
        """
        values = values.combine_chunks() if isinstance(values, pa.ChunkedArray) else values
        columns = [values, keys, event_times_ms]
        if not len(values):
            raise Refused("the column to send has no value", hint="Send at least one value")
        self._parts[0].require_columns(values, keys, event_times_ms)
        if keys is None:
            ranges = _ranges(values, self._batching)
            return _all([self._send_rows(None, columns, np.arange(at, end)) for at, end in ranges])
        places = partitions_for_keys(keys, len(self._parts), self._hashing_scheme)
        sent = []
        for place in np.unique(places).tolist():
            part = None if place < 0 else self._parts[place]
            sent.append(self._send_rows(part, columns, np.flatnonzero(places == place)))
        return _all(sent)

    def flush(self) -> None:
        """Wait until all messages sent so far are durable in all partitions. Raises the first error."""
        _each([part.flush for part in self._parts])

    def close(self) -> None:
        """Wait until all messages are durable, and end the streams. Raises the first error."""
        _each([part.close for part in self._parts])

    def _send_numbered(
        self, value: Row | bytes | None, key: str | bytes | None, sequence_id: int, options: Mapping[str, object]
    ) -> Future[MessageId]:
        require_sequence_id(sequence_id)
        place = operator.index(sequence_id) % len(self._parts)
        if isinstance(key, str | bytes):
            place = partition_for_key(key, len(self._parts), self._hashing_scheme)
        with self._choosing:
            if sequence_id <= self._last_given:
                raise Refused(
                    f"sequence id {sequence_id} was given to the producer {self.name!r}, its last is "
                    f"{self._last_given}",
                    hint="Use a higher id",
                )
            sent = self._parts[place].send(value, key=key, sequence_id=sequence_id, **options)  # type: ignore[arg-type]  # see `send`
            self._last_given = sequence_id
            return sent

    def _part_in_turn(self) -> MessageProducer[Row]:
        part = self._parts[self._turn]
        if part.batches != self._batches:
            self._turn = (self._turn + 1) % len(self._parts)
            part = self._parts[self._turn]
            self._batches = part.batches
        return part

    def _send_rows(
        self, part: MessageProducer[Row] | None, columns: Sequence[pa.Array | None], rows: npt.NDArray[np.int64]
    ) -> Future[MessageId]:
        wanted = pa.array(rows)
        values, keys, times = (None if column is None else pc.take(column, wanted) for column in columns)
        if part is not None:
            return part.send_column(values, keys=keys, event_times_ms=times)
        with self._choosing:
            return self._part_in_turn().send_column(values, keys=keys, event_times_ms=times)


def _ranges(values: pa.Array, batching: Batching) -> list[tuple[int, int]]:
    sizes = np.asarray(pc.fill_null(pc.binary_length(values), 0), dtype=np.int64)
    edges = batch_edges(sizes, batching.batching_max_messages, batching.batching_max_bytes)
    return list(pairwise(edges))


def _all(sent: Sequence[Future[MessageId]]) -> Future[list[MessageId]]:
    """Return a future with the results of all futures, or with the first error in the list."""
    done: Future[list[MessageId]] = Future()
    done.set_running_or_notify_cancel()
    left = [len(sent)]
    lock = threading.Lock()

    def settle(_: Future[MessageId]) -> None:
        with lock:
            left[0] -= 1
            if left[0]:
                return
        error = next((error for future in sent if (error := future.exception()) is not None), None)
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result([future.result() for future in sent])

    for future in sent:
        future.add_done_callback(settle)
    return done


def _each(calls: Sequence[Callable[[], None]]) -> None:
    """Run all calls, also after an error. Raises the first error."""
    first: LedgerError | None = None
    for call in calls:
        try:
            call()
        except LedgerError as error:
            first = first or error
    if first is not None:
        raise first
