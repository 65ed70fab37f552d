"""Tasks of a sink that put their parts into the bucket of a store, without Spark."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence

import pytest

from pyspark_ledger.connector.write.direct_part import bucket_of
from pyspark_ledger.ledger.bucket_store.home import BucketStore
from pyspark_ledger.ledger.objects.s3_options import S3Options
from pyspark_ledger.ledger.protocol.commits import CommitRun, LedgerParts, OpenUpload, PartRun, StagedPart
from pyspark_ledger.ledger.segment.object_names import ObjectKey
from pyspark_ledger.ledger.transport.direct_upload import DirectPlace, direct_writer
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from tests.rigs.entry import entry
from tests.rigs.promotion import equal_offsets

BLOCK = 4096


def part_run(batch: int, query: str = "q") -> PartRun:
    return PartRun(query, batch, 7, batch, BLOCK, 1)


def put(
    opened: BucketStore,
    batch: int,
    task: int,
    payloads: Sequence[bytes],
    *,
    query: str = "q",
    ledger: str = "log",
    options: S3Options | None = None,
) -> StagedPart:
    """Put the part of a task into the bucket. Its entries belong to run `batch`."""
    upload = begin(opened, batch, task, query=query, ledger=ledger, options=options)
    for value in payloads:
        upload.write([entry(value, run=batch)], 1)
    return upload.close()


def begin(
    opened: BucketStore,
    batch: int,
    task: int,
    *,
    query: str = "q",
    ledger: str = "log",
    options: S3Options | None = None,
) -> PartWriter:
    """Begin the upload of a task's part."""
    target = opened.store.commits.open_upload(OpenUpload(query, batch, ledger, task))
    assert target.access is not None
    store = bucket_of(target.access, options)
    place = DirectPlace(store, ObjectKey(uuid.UUID(target.attempt), target.ledger_id), target.metadata)
    return direct_writer(place, part_run(batch, query))


def stage(opened: BucketStore, batch: int, payloads: Sequence[bytes], *, query: str = "q") -> StagedPart:
    """Stage a small part through the broker, as frames of a segment."""
    with PartWriter.to_file(opened.store.commits.open_part(query, batch)) as part:
        for value in payloads:
            part.write([entry(value, run=batch)], 1)
        return part.close()


def request(batch: int, parts: list[StagedPart], *, query: str = "q", ledger: str = "log") -> CommitRun:
    return CommitRun(ledger, query, batch, 7, batch, parts, origin=equal_offsets(batch))


def of_ledger(ledger: str, *parts: StagedPart) -> LedgerParts:
    return LedgerParts(ledger, list(parts))


def with_first(
    patch: pytest.MonkeyPatch, kind: type, name: str, step: Callable[[], object], *, after: bool = False
) -> None:
    """Let `step` run before the first call of a method, or `after` it."""
    method, steps = getattr(kind, name), [step]

    def call(*arguments: object) -> object:
        step = steps.pop() if steps else None
        if step is not None and not after:
            step()
        result = method(*arguments)
        if step is not None and after:
            step()
        return result

    patch.setattr(kind, name, call)
