"""Goal: an invalid time does not break its row. Method: times out of the timestamp range, single and in batches.

Times are unsigned on the wire, and Pulsar's Java code reads them as signed. Many producers pass nanoseconds.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pyarrow as pa
import pytest

from pyspark_ledger.connector.options.options import read_options
from pyspark_ledger.connector.read.bucket.scan import BucketScan
from pyspark_ledger.connector.rows.message_rows import PulsarRows
from pyspark_ledger.connector.rows.shape import RowOptions, row_shape
from pyspark_ledger.ledger.message.batch_decoder import decode_messages
from pyspark_ledger.ledger.message.entry import BrokerStamp, ParsedEntry, stamp_prefix
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import BrokerEntryMetadata, MessageMetadata
from pyspark_ledger.ledger.rows.metadata_columns import MILLISECONDS_MAX, PROVENANCE, Topic
from tests.connector.rows.test_message_rows import packed
from tests.ledger.message.test_fixtures_pulsar import ROOT
from tests.rigs.bucket import message, put_segment
from tests.rigs.scan import read_bucket as rows

SHAPE = row_shape(None, None, RowOptions(include_metadata=True), "a", more=PROVENANCE)
EVENTS = {"offload": str(ROOT / "31-times"), "path": "public/fx/31-times", "includeMetadata": "true"}
# Times on the wire, and the expected microseconds.
TIMES = [
    (0, None),
    (1, 1_000),
    (1_700_000_000_123, 1_700_000_000_123_000),
    (MILLISECONDS_MAX, MILLISECONDS_MAX * 1000),
    (MILLISECONDS_MAX + 1, None),
    (1_700_000_000 * 10**9, None),
    (2**63 - 1, None),
    (2**63, None),
    (2**64 - 5, -5_000),
    (2**64 - MILLISECONDS_MAX - 1, None),
]


def read(entries: list[ParsedEntry], name: str) -> list[int | None]:
    placed = [(Position(3, number), entry) for number, entry in enumerate(entries)]
    found = pa.Table.from_batches(PulsarRows(Topic.of("public/default/persistent/t"), SHAPE).batches(placed))
    found.validate(full=True)
    return list(found[name].cast(pa.int64()).to_pylist())


def entry(payload: bytes = b"v", stamp: BrokerStamp | None = None, **fields: int) -> ParsedEntry:
    said = MessageMetadata(producer_name="p", sequence_id=4, **{"publish_time": 1, **fields})
    return ParsedEntry(stamp, said, memoryview(payload))


@pytest.mark.parametrize("field", ["event_time", "publish_time"])
def test_a_time_that_no_timestamp_states_is_null_and_others_are_exact(field: str) -> None:
    name = "__eventTime" if field == "event_time" else "__publishTime"
    wanted = [micros for _, micros in TIMES]
    assert read([entry(**{field: time}) for time, _ in TIMES], name) == wanted
    plain = packed({}, b"v", b"")
    assert read([entry(plain, num_messages_in_batch=1, **{field: time}) for time, _ in TIMES], name) == wanted


def test_times_of_the_messages_of_a_batch_are_their_own() -> None:
    known = [(time, micros) for time, micros in TIMES if time < 2**63]
    plain = b"".join(packed({"event_time": time}, b"v", b"") for time, _ in known)
    assert read([entry(plain, num_messages_in_batch=len(known))], "__eventTime") == [micros for _, micros in known]


@pytest.mark.parametrize("stamped", [None, BrokerStamp(0, 12), BrokerStamp(2**64 - 1, 0), BrokerStamp(5, 2**64)])
def test_a_stamp_says_what_it_has(stamped: BrokerStamp | None) -> None:
    (time,) = read([entry(stamp=stamped)], "__brokerPublishTime")
    (index,) = read([entry(stamp=stamped)], "__index")
    assert time == (5000 if stamped and stamped.timestamp_ms == 5 else None)
    assert index == (min(stamped.row_end, 2**63 - 1) - 1 if stamped and stamped.row_end else None)
    (told,) = decode_messages(entry(stamp=stamped), "here")
    assert told.broker_time == (stamped.timestamp_ms or None if stamped else None)


def test_event_times_that_a_real_pulsar_took_are_those_that_it_delivers() -> None:
    with gzip.open(ROOT / "31-times" / "expected.jsonl.gz", "rt") as file:
        wanted = [json.loads(line)["eventTime"] for line in file]
    assert len(wanted) == 102
    assert min(wanted) == -(2**63)
    assert max(wanted) == 2**63 - 1
    entries = pa.Table.from_batches(batch for task in BucketScan(read_options(EVENTS)).tasks() for batch in task.read())
    times = entries["__eventTime"].cast(pa.int64()).to_pylist()
    assert times == [None if time == 0 or abs(time) > MILLISECONDS_MAX else time * 1000 for time in wanted]


def test_stamps_with_an_index_and_no_time_are_read_from_a_bucket(tmp_path: Path) -> None:
    body = BrokerEntryMetadata(index=7).SerializeToString()
    indexed = b"\x0e\x02" + len(body).to_bytes(4, "big") + body + message(0)
    put_segment(tmp_path, 3, [indexed, stamp_prefix(BrokerStamp(1_000, 9)) + message(1)])
    found = rows(tmp_path, "t", includeMetadata="true")
    assert [row["__index"] for row in found] == [7, 8]
    assert [row["__brokerPublishTime"] is None for row in found] == [True, False]
