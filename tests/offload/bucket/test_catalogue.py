"""Goal: the catalogue of a bucket lists its segments and its gaps. Method: real objects, made for each case."""

from __future__ import annotations

import json
import uuid
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Corrupt, LedgerError, NotFound, Refused, Unsupported
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import ManagedLedgerInfo
from pyspark_ledger.offload.bucket.catalogue import Catalogue, TopicSegments
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_metadata import KnownSegment, PulsarRecord, parse_records
from pyspark_ledger.offload.format.block_index import IndexedBlock
from pyspark_ledger.offload.format.streaming_index import StreamedSegment, StreamingIndex
from tests.rigs.bucket import TOPIC, message, put_segment

ENTRIES = [message(number) for number in range(5)]


def listed(directory: Path) -> Catalogue:
    return read_catalogue(open_object_store(directory))


def only(directory: Path, name: str = "t") -> TopicSegments:
    (topic,) = listed(directory).find(name)
    return topic


def gaps(topic: TopicSegments) -> list[tuple[int, int, int]]:
    return [(gap.ledger_id, gap.first, gap.end) for gap in topic.gaps]


@pytest.mark.parametrize(
    "name", ["t", "public/default/t", "public/default/persistent/t", "persistent://public/default/t"]
)
def test_a_topic_is_found_in_every_spelling(tmp_path: Path, name: str) -> None:
    put_segment(tmp_path / "any" / "folder", 7, ENTRIES)
    assert [segment.ledger_id for segment in only(tmp_path, name).segments] == [7]


def test_a_name_that_pulsar_encodes_is_found_as_it_is_written(tmp_path: Path) -> None:
    put_segment(tmp_path, 7, ENTRIES, topic="public/default/persistent/a+b%C3%BC")
    assert only(tmp_path, "a bü").name == "public/default/persistent/a bü"
    assert only(tmp_path, "public/default/persistent/a+b%C3%BC").segments


def test_without_user_metadata_the_index_says_the_topic(tmp_path: Path) -> None:
    put_segment(tmp_path, 7, ENTRIES, sidecar=False)
    assert only(tmp_path).path == TOPIC


def test_another_name_is_refused_with_the_nearest(tmp_path: Path) -> None:
    put_segment(tmp_path, 7, ENTRIES, topic="public/default/persistent/flights")
    with pytest.raises(NotFound, match="Did you mean 'public/default/persistent/flights'"):
        only(tmp_path, "flight")


def test_nothing_to_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "readme.txt").write_text("no ledger")
    with pytest.raises(NotFound, match="no object is named"):
        listed(tmp_path)
    (tmp_path / f"{uuid.uuid4()}-index").write_bytes(b"streamed")
    with pytest.raises(Unsupported, match="streaming offloads"):
        listed(tmp_path)


def test_partitions_come_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    for partition in (10, 2, 0):
        put_segment(tmp_path, partition + 1, ENTRIES, topic=f"{TOPIC}-partition-{partition}")
    found = listed(tmp_path).find("t")
    assert [topic.name.rpartition("-")[2] for topic in found] == ["0", "2", "10"]
    assert only(tmp_path, "t-partition-2").segments[0].ledger_id == 3
    put_segment(tmp_path, 99, ENTRIES)
    with pytest.raises(Refused, match="is a topic without partitions and also has 3 partitions"):
        listed(tmp_path).find("t")


def test_ledgers_rise_and_attempts_that_did_not_end_count_for_nothing(tmp_path: Path) -> None:
    for ledger_id in (30, 4, 12):
        put_segment(tmp_path, ledger_id, ENTRIES)
    lost = put_segment(tmp_path, 12, ENTRIES, attempt=uuid.uuid4())
    (tmp_path / lost.index_name).unlink()
    topic = only(tmp_path)
    assert [segment.ledger_id for segment in topic.segments] == [4, 12, 30]
    assert not topic.gaps


def test_a_ledger_of_which_no_attempt_ended_is_a_gap_unless_it_comes_last(tmp_path: Path) -> None:
    for ledger_id in (4, 12, 30):
        put_segment(tmp_path, ledger_id, ENTRIES)
    middle, last = (only(tmp_path).segments[number] for number in (1, 2))
    (tmp_path / f"{middle.data_name}-index").unlink()
    assert gaps(only(tmp_path)) == [(12, 0, -1)]
    (tmp_path / f"{last.data_name}-index").unlink()
    assert gaps(only(tmp_path)) == []


def test_an_index_without_its_data_is_a_gap(tmp_path: Path) -> None:
    for ledger_id in (4, 12):
        put_segment(tmp_path, ledger_id, ENTRIES)
    first, last = only(tmp_path).segments
    (tmp_path / first.data_name).unlink()
    assert gaps(only(tmp_path)) == [(4, 0, 5)]
    # The data object is written before its index, so the last segment is lost and not in upload.
    (tmp_path / last.data_name).unlink()
    assert gaps(only(tmp_path)) == [(4, 0, 5), (12, 0, 5)]


def test_equal_attempts_are_one_and_different_ones_are_refused(tmp_path: Path) -> None:
    put_segment(tmp_path, 4, ENTRIES)
    put_segment(tmp_path, 4, ENTRIES, attempt=uuid.uuid4())
    assert len(only(tmp_path).segments) == 1
    put_segment(tmp_path, 4, ENTRIES[:3], attempt=uuid.uuid4())
    with pytest.raises(Refused, match="ledger 4 was offloaded 3 times and last entry id and length differ"):
        only(tmp_path)


def test_two_clusters_of_one_topic_are_refused_until_one_is_named(tmp_path: Path) -> None:
    put_segment(tmp_path, 4, ENTRIES, cluster="east")
    put_segment(tmp_path, 5, ENTRIES, cluster="west")
    with pytest.raises(Refused, match=r"exists 2 times: cluster 'east'.*cluster 'west'"):
        only(tmp_path)
    (topic,) = listed(tmp_path).find("t", cluster="west")
    assert [segment.ledger_id for segment in topic.segments] == [5]


def test_objects_without_a_cluster_belong_to_that_of_the_later_ledgers(tmp_path: Path) -> None:
    put_segment(tmp_path, 4, ENTRIES, sidecar=False)
    put_segment(tmp_path, 9, ENTRIES, cluster="west")
    for cluster in ("", "west"):
        (topic,) = listed(tmp_path).find("t", cluster=cluster)
        assert ([segment.ledger_id for segment in topic.segments], topic.cluster) == ([4, 9], "west")
    put_segment(tmp_path, 12, ENTRIES, sidecar=False)
    with pytest.raises(Refused, match="exists 2 times: cluster '' incarnation ''; cluster 'west'"):
        only(tmp_path)


@pytest.mark.parametrize("named", [False, True])
def test_objects_that_tell_no_topic_are_found_by_pulsars_record(tmp_path: Path, named: bool) -> None:
    for ledger_id in (4, 5, 9):
        put_segment(tmp_path, ledger_id, ENTRIES, topic="", sidecar=False)
    if named:
        put_segment(tmp_path, 30, ENTRIES)
    with pytest.raises(NotFound, match="no object is of topic 'u'"):
        listed(tmp_path).find("u")
    ledgers = tuple(
        KnownSegment(number, 5, offloaded=True, attempt=None) for number in (4, 9, *([30] if named else []))
    )
    for topic in ("", "persistent://public/default/t"):
        (found,) = listed(tmp_path).find("t", [PulsarRecord(topic, ledgers)])
        assert [segment.ledger_id for segment in found.segments] == [4, 9, *([30] if named else [])]
        assert (found.path, found.gaps) == (TOPIC, ())
    partitions = [PulsarRecord(f"persistent://public/default/p-partition-{n}", ledgers[n : n + 1]) for n in (0, 1)]
    found_parts = listed(tmp_path).find("p", partitions)
    assert [topic.path for topic in found_parts] == [f"public/default/persistent/p-partition-{n}" for n in (0, 1)]


def damage_size(directory: Path, name: str) -> None:
    path = directory / name
    path.write_bytes(path.read_bytes()[:-1])


def damage_index(directory: Path, name: str) -> None:
    path = directory / f"{name}-index"
    path.write_bytes(b"\0" + path.read_bytes()[1:])


@pytest.mark.parametrize(
    ("damage", "message"),
    [(damage_size, "has 287 bytes, its index states 288"), (damage_index, "expected 0xde47de47")],
)
def test_damage_is_an_error_that_names_the_object_and_both_values(tmp_path: Path, damage: object, message: str) -> None:
    key = put_segment(tmp_path, 4, [b"x" * 20] * 5)
    damage(tmp_path, key.data_name)  # type: ignore[operator]
    with pytest.raises(Corrupt, match=message):
        only(tmp_path)


@pytest.mark.parametrize("what", ["sidecar", "size"])
def test_unreadable_index_fails_its_topic_and_no_other(tmp_path: Path, what: str) -> None:
    put_segment(tmp_path, 9, ENTRIES, topic="public/default/persistent/other")
    name = put_segment(tmp_path, 4, ENTRIES).index_name
    if what == "sidecar":
        (tmp_path / f"{name}.meta.json").write_text("[]")
    else:
        with (tmp_path / name).open("ab") as file:
            file.truncate(2**40)
    assert only(tmp_path, "other").segments
    with pytest.raises(
        Corrupt, match="ledger 4: .*meta.json: Expected" if what == "sidecar" else "ledger 4: .* at most 67108864"
    ):
        only(tmp_path)


def test_what_cannot_be_read_and_tells_no_topic_is_said(tmp_path: Path) -> None:
    key = put_segment(tmp_path, 4, ENTRIES, sidecar=False)
    damage_index(tmp_path, key.data_name)
    with pytest.raises(NotFound, match=r"0 topics; 1 unreadable segments state no topic: ledger 4: .* expected 0xde47"):
        only(tmp_path)
    put_segment(tmp_path, 5, ENTRIES)
    assert [segment.ledger_id for segment in only(tmp_path).segments] == [5]
    assert len(listed(tmp_path).topicless_faults) == 1


def test_a_later_format_is_not_guessed_at(tmp_path: Path) -> None:
    key = put_segment(tmp_path, 4, ENTRIES)
    put_segment(tmp_path, 5, ENTRIES)
    beside = tmp_path / f"{key.index_name}.meta.json"
    beside.write_text(beside.read_text().replace('version": "1"', 'version": "12345"'))
    (gap,) = only(tmp_path).gaps
    assert "is of format version '12345', expected '1'" in gap.cause


def test_pulsars_record_goes_before_the_listing(tmp_path: Path) -> None:
    kept = {ledger_id: put_segment(tmp_path, ledger_id, ENTRIES) for ledger_id in (4, 12, 30)}
    other = put_segment(tmp_path, 12, ENTRIES, attempt=uuid.uuid4())
    ledgers = (
        KnownSegment(9, 3, offloaded=False, attempt=None),
        KnownSegment(12, 5, offloaded=True, attempt=other),
        KnownSegment(20, 8, offloaded=True, attempt=kept[4]),
        KnownSegment(30, 5, offloaded=True, attempt=None),
        KnownSegment(31, 0, offloaded=False, attempt=None),
    )
    (topic,) = listed(tmp_path).find("t", [PulsarRecord("", ledgers)])
    assert [segment.data_name for segment in topic.segments] == [other.data_name, kept[30].data_name]
    assert gaps(topic) == [(9, 0, 3), (20, 0, 8)]
    wrong = (KnownSegment(12, 6, offloaded=True, attempt=other),)
    with pytest.raises(Corrupt, match="states 5 entries, Pulsar 6"):
        listed(tmp_path).find("t", [PulsarRecord("", wrong)])
    with pytest.raises(LedgerError, match="none of 1 records of Pulsar is of topic"):
        listed(tmp_path).find("t", [PulsarRecord("persistent://public/default/other", ledgers)])


@pytest.mark.parametrize("data", [b"", b'{"ledgers": []}', b'{"partitions": {}}'])
def test_a_record_without_a_ledger_is_no_record(data: bytes) -> None:
    with pytest.raises(Corrupt, match=f"stats of {len(data)} bytes lists no ledger"):
        parse_records(data, "stats")


def test_ledgers_of_a_streaming_offload_are_listed_and_missing_by_name(tmp_path: Path) -> None:
    put_segment(tmp_path, 3, [message(0)])
    infos = [ManagedLedgerInfo.LedgerInfo(ledgerId=number, entries=5, size=9) for number in (5, 7)]
    ledgers = [StreamedSegment(info.ledgerId, info, (IndexedBlock(0, n + 1, n * 300),)) for n, info in enumerate(infos)]
    name = str(uuid.UUID(int=4))
    (tmp_path / f"{name}-index").write_bytes(StreamingIndex(600, tuple(ledgers)).encode())
    (tmp_path / name).write_bytes(bytes(600))
    said = {"userMetadata": {"managedledgername": TOPIC, "pulsarclustername": "c"}}
    (tmp_path / f"{name}-index.meta.json").write_text(json.dumps(said))
    damaged = str(uuid.UUID(int=5))
    (tmp_path / f"{damaged}-index").write_bytes(b"nothing")
    catalogue = read_catalogue(open_object_store(tmp_path))
    (topic,) = catalogue.find("t")
    assert [one.ledger_id for one in topic.segments] == [3]
    assert [(gap.ledger_id, gap.first, gap.end) for gap in topic.gaps] == [(5, 0, 5), (7, 0, 5)]
    assert f"{name} is a streaming offload (version 2)" in topic.gaps[0].cause
    (broken,) = (one for one in catalogue.attempts if one.data_name == damaged)
    assert "at least 24 bytes, this object 7" in broken.fault
