"""Segments of a restored store in a bucket: those of the history that was lost are told apart.

    before the backup   segments 1, 2           rows 0 to 99
    lost history        segment 3               rows 100 to 149, uploaded after the backup
    after the restore   segment 1000000003      rows 100 on

A broker deletes the objects of the lost history only on request (`ledger offload NAME --sweep`). After a restore, the
ids of segments begin `SKIPPED_IDS` higher. So at such a step, the rows of both segments must join.
"""

from __future__ import annotations

import logging
from itertools import pairwise
from pathlib import Path

from pyspark_ledger.ledger.errors import NotFound, Refused
from pyspark_ledger.ledger.metadata.owner import SKIPPED_IDS
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.segment.index import EntryIndex, parse_sealed
from pyspark_ledger.ledger.segment.object_names import ENTRIES_SUFFIX
from pyspark_ledger.offload.bucket.catalogue import Segment, TopicSegments
from pyspark_ledger.offload.reader import entry_index_bytes

_log = logging.getLogger(__name__)


def require_one_history(store: ObjectStore, topic: TopicSegments, joined: set[tuple[str, str]]) -> None:
    """Raise Refused if the bucket has segments of a history that a restore of the store has lost.

    Reads no object unless the ids of two segments show that the store was restored between them. Adds each such pair of
    objects to `joined`, so that the next listing does not read them again.
    """
    for before, after in pairwise(topic.segments):
        pair = before.data_name, after.data_name
        # The lost history has used some of the ids.
        if after.ledger_id - before.ledger_id < SKIPPED_IDS // 2 or pair in joined:
            continue
        ends, begins = _entry_index(store, before), _entry_index(store, after)
        if ends is None or begins is None:
            where = f"segments {before.ledger_id} and {after.ledger_id} of {topic.name}"
            _log.warning("%s: without entry indexes it is unknown whether a restore lies between them", where)
        elif ends.row_end != begins.first_row:
            raise Refused(
                f"segment {before.ledger_id} of {topic.name!r} ends at row {ends.row_end}, and the next, "
                f"{after.ledger_id}, begins at row {begins.first_row}: the store was restored between them",
                hint="Delete the objects of the lost history: ledger offload NAME --sweep",
            )
        joined.add(pair)


def _entry_index(store: ObjectStore, segment: Segment) -> EntryIndex | None:
    """Return the entry index of a segment, or None if the segment was uploaded without one."""
    name = f"{segment.data_name}{ENTRIES_SUFFIX}"
    try:
        data = store.get(name, entry_index_bytes(segment.entries)).data
    except NotFound:
        return None
    return parse_sealed(data, Path(f"{store.address}/{name}"), segment.ledger_id, segment.entries)
