"""Goal: a marker says which batch it closes and delivers no row. Method: round trips, foreign and broken markers."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyspark_ledger.ledger.errors import Corrupt
from pyspark_ledger.ledger.message.entry import entry_rows, is_marker, parse_entry
from pyspark_ledger.ledger.message.run_marker import (
    RunId,
    RunSummary,
    closes_run,
    encode_marker,
    marker_summary,
    run_id,
)
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata

unsigned = st.integers(0, 2**64 - 1)


@given(unsigned, unsigned, st.text(st.characters(exclude_categories=["Cs"])), st.integers(0, 2**63 - 1))
def test_a_marker_says_what_it_closes(most: int, least: int, query: str, batch: int) -> None:
    said = RunSummary(query, batch, 5, 7)
    metadata = parse_entry(encode_marker(RunId(most, least), said, 3), "a marker").metadata
    assert marker_summary(metadata, "here") == said
    assert run_id(metadata) == RunId(most, least)
    assert closes_run(metadata)
    assert is_marker(metadata)
    assert entry_rows(metadata) == 0


def test_a_marker_of_a_pulsar_broker_closes_a_run_of_nobodys() -> None:
    metadata = MessageMetadata(producer_name="b", sequence_id=0, publish_time=1, marker_type=21)
    assert closes_run(metadata)
    assert marker_summary(metadata, "here") is None
    assert not closes_run(MessageMetadata(producer_name="b", sequence_id=0, publish_time=1, marker_type=22))
    assert run_id(MessageMetadata(producer_name="b", sequence_id=0, publish_time=1)) is None


@pytest.mark.parametrize("key", ["ledger.run.batch", "ledger.run.entries", "ledger.run.rows"])
@pytest.mark.parametrize("value", [None, "", "x"])
def test_a_broken_marker_is_corrupt_naming_the_place(key: str, value: str | None) -> None:
    metadata = parse_entry(encode_marker(RunId(1, 2), RunSummary("q", 1, 1, 1), 3), "a marker").metadata
    pairs = [(pair.key, pair.value) for pair in metadata.properties if pair.key != key]
    del metadata.properties[:]
    for name, text in [*pairs, *([(key, value)] if value is not None else [])]:
        metadata.properties.add(key=name, value=text)
    with pytest.raises(Corrupt, match=r"marker at 3:17"):
        marker_summary(metadata, "3:17")
