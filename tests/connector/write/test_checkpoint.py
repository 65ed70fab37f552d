"""Goal: the sink finds the offsets of a batch in a checkpoint, or finds none. Method: folders with Spark's files."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.connector.write.checkpoint import Checkpoint, digest_of
from pyspark_ledger.ledger.objects.factory import open_object_store
from streaming_examples.s3_server import S3Server

OFFSETS = b'v1\n{"batchTimestampMs":1}\n{"ledgers":{"in":7}}\n-'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "check point"
    (folder / "offsets").mkdir(parents=True)
    (folder / "metadata").write_text('{"id":"q"}')
    (folder / "offsets" / "3").write_bytes(OFFSETS)
    return folder


@pytest.mark.parametrize("place", ["{}", "file:{}", "file://{}", "FILE:{}"])
def test_offsets_are_found_at_every_spelling_of_a_place(folder: Path, place: str) -> None:
    checkpoint = Checkpoint(place.format(folder))
    assert (checkpoint.query(), checkpoint.offsets(3)) == ("q", digest_of(OFFSETS))
    assert [checkpoint.offsets(number) for number in (2, 4, -1)] == ["", "", ""]


def test_a_relative_place_is_below_the_working_directory(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert Checkpoint("check point").offsets(3) == digest_of(OFFSETS)


@pytest.mark.parametrize("place", ["", "hdfs://host/c", "abfss://c@a.dfs.core.windows.net/c", "/nowhere", "dbfs:/none"])
def test_offsets_elsewhere_are_unknown(place: str) -> None:
    checkpoint = Checkpoint(place)
    assert (checkpoint.query(), checkpoint.offsets(3)) == ("", "")


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
def test_offsets_in_a_bucket_are_found_with_credentials(
    folder: Path, bucket: str, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    place = bucket.replace("s3:", f"{scheme}:") + "/checkpoints/a"
    assert Checkpoint(place).query() == "", "no credentials are named"
    for name, value in s3_server.environment.items():
        monkeypatch.setenv(name, value)
    assert Checkpoint(place).query() == ""
    store = open_object_store(bucket)
    for name in ("metadata", "offsets/3"):
        store.put(f"checkpoints/a/{name}", (folder / name).read_bytes())
    assert (Checkpoint(place).query(), Checkpoint(place).offsets(3)) == ("q", digest_of(OFFSETS))


@pytest.mark.parametrize("metadata", [b"", b"[]", b"\xff", b"{}", b"{"])
def test_a_damaged_checkpoint_is_unknown(folder: Path, metadata: bytes) -> None:
    (folder / "metadata").write_bytes(metadata)
    assert Checkpoint(str(folder)).query() == ""


def test_a_digest_covers_the_sources_only() -> None:
    later = OFFSETS.replace(b":1}", b":2}")
    moved = OFFSETS.replace(b":7", b":8")
    named = b'v2\n{"batchTimestampMs":1}\n{"0":{"ledgers":{"in":7}}}'
    assert digest_of(later) == digest_of(OFFSETS) == digest_of(OFFSETS + b"\n")
    assert len({digest_of(OFFSETS), digest_of(moved), digest_of(named)}) == 3
    assert [digest_of(damaged) for damaged in (b"", b"v1", b"v1\n{}", b"v1\n{}\n", b"x\n{}\n7")] == [""] * 5


def test_a_digest_leaves_out_the_place_of_the_store() -> None:
    """Two copies of a checkpoint may reach their store by its directory and by its broker's address."""
    text = b'v1\n{}\n{"ledgers":{"in":7},"store":{"at":"%s","id":"7"},"v":1}'
    assert digest_of(text % b"/stores/a") == digest_of(text % b"grpc://host:1")
    assert digest_of(text % b"/a") != digest_of((text % b"/a").replace(b":7}", b":8}"))


def test_a_digest_leaves_out_the_reports_of_ledgers() -> None:
    first, second = (b'v1\n{"batchTimestampMs":1}\n{"ledgers":{"in":7},"report":{"hits":%d}}' % hits for hits in (1, 2))
    other = first.replace(b":7", b":8")
    foreign = [text.replace(b"ledgers", b"topics") for text in (first, second)]
    assert digest_of(first) == digest_of(second) != digest_of(other)
    assert digest_of(foreign[0]) != digest_of(foreign[1]), "other sources may read by such a member"
