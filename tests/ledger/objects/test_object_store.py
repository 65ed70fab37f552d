"""Goal: every object store keeps the same contract. Method: tests run over a directory and a real S3 server."""

from __future__ import annotations

import pickle
import random
import resource
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import pytest

from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.errors import AlreadyExists, Corrupt, NotFound, Refused
from pyspark_ledger.ledger.objects import s3
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.object_store import (
    METADATA_BYTES_MAX,
    PART_BYTES_MIN,
    ObjectStore,
    Upload,
    UploadedPart,
)
from pyspark_ledger.ledger.tiering.offloader import OffloadCallbacks
from pyspark_ledger.offload.upload import FilePart, upload_file

PART = PART_BYTES_MIN


@pytest.fixture(scope="module", params=["directory", "s3", "s3-prefix"])
def opened(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObjectStore]:
    if request.param == "directory":
        store = open_object_store(tmp_path_factory.mktemp("objects") / "not-made-yet")
    else:
        server = request.getfixturevalue("s3_server")
        prefix = "/some/prefix" if request.param == "s3-prefix" else ""
        store = open_object_store(server.make_bucket(f"contract-{request.param}") + prefix, server.options)
    yield store
    store.close()


@pytest.fixture
def store(opened: ObjectStore) -> ObjectStore:
    """An empty store."""
    opened.delete([found.key for found in opened.objects()])
    for upload in list(opened.uploads()):
        opened.abort(upload)
    return opened


def keys(store: ObjectStore, prefix: str = "", after: str = "") -> list[str]:
    return [found.key for found in store.objects(prefix, after=after)]


def pickled(store: ObjectStore) -> ObjectStore:
    copy: ObjectStore = pickle.loads(pickle.dumps(store))  # noqa: S301 — our own
    return copy


def test_an_object_comes_back_with_its_metadata(store: ObjectStore) -> None:
    etag = store.put("a-ledger-1-index", b"hello", {"Role": "index", "managedLedgerName": "public/default/t"})
    found = store.get("a-ledger-1-index", 5)
    assert found.data == b"hello"
    assert found.head == store.head("a-ledger-1-index")
    assert (found.head.size, found.head.etag) == (5, etag)
    assert found.head.metadata == {"role": "index", "managedledgername": "public/default/t"}


def test_a_second_put_replaces_bytes_and_metadata(store: ObjectStore) -> None:
    store.put("a", b"first, longer", {"x": "1"})
    store.put("a", b"second")
    assert store.get("a", 100).data == b"second"
    assert store.head("a").metadata == {}


def test_an_empty_object_is_one(store: ObjectStore) -> None:
    store.put("empty", b"")
    assert store.get("empty", 0).data == b""
    assert store.get_range("empty", 0, 0) == b""


def test_an_object_larger_than_allowed_is_refused_with_both_sizes(store: ObjectStore) -> None:
    store.put("large", bytes(100))
    with pytest.raises(Refused, match="has 100 bytes, at most 99"):
        store.get("large", 99)


@pytest.mark.parametrize(("start", "length"), [(0, 10), (3, 4), (9, 1), (0, 1)])
def test_a_range_is_exactly_what_was_asked_for(store: ObjectStore, start: int, length: int) -> None:
    store.put("digits", b"0123456789")
    assert bytes(memoryview(store.get_range("digits", start, length))) == b"0123456789"[start : start + length]


@pytest.mark.parametrize(("start", "length"), [(0, 11), (9, 2), (10, 1), (50, 5)])
def test_a_range_beyond_the_end_is_corrupt(store: ObjectStore, start: int, length: int) -> None:
    store.put("digits", b"0123456789")
    with pytest.raises(Corrupt):
        store.get_range("digits", start, length)


def test_what_is_not_there_is_not_found(store: ObjectStore) -> None:
    for ask in (lambda: store.get("gone", 1), lambda: store.get_range("gone", 0, 1), lambda: store.head("gone")):
        with pytest.raises(NotFound, match="gone"):
            ask()


def test_a_listing_is_in_order_of_keys(store: ObjectStore) -> None:
    for key in ("b", "a", "c-index", "c", "folder/x", "ca"):
        store.put(key, key.encode())
    assert keys(store) == ["a", "b", "c", "c-index", "ca", "folder/x"]
    assert keys(store, "c") == ["c", "c-index", "ca"]
    assert keys(store, "c", "c") == ["c-index", "ca"]
    assert keys(store, "nothing") == []
    (listed,) = store.objects("b")
    assert listed.size == 1
    assert listed.modified_ms > 1_600_000_000_000


def test_deleting_may_be_repeated(store: ObjectStore) -> None:
    for key in ("a", "b", "c"):
        store.put(key, b"x", {"m": "1"})
    store.delete(["a", "b", "never-there"])
    store.delete(["a"])
    store.delete([])
    assert keys(store) == ["c"]


def test_a_put_of_something_new_only_leaves_what_is_there(store: ObjectStore) -> None:
    store.put("a", b"first", only_new=True)
    with pytest.raises(AlreadyExists):
        store.put("a", b"second", only_new=True)
    assert store.get("a", 9).data == b"first"


def test_a_put_over_a_known_etag_fails_when_somebody_was_faster(store: ObjectStore) -> None:
    first = store.put("a", b"first")
    second = store.put("a", b"second", if_match=first)
    with pytest.raises(AlreadyExists):
        store.put("a", b"third", if_match=first)
    assert (store.get("a", 9).data, store.head("a").etag) == (b"second", second)


def test_of_many_who_put_something_new_one_wins(store: ObjectStore) -> None:
    won: list[int] = []

    def put(number: int) -> None:
        try:
            store.put("contended", str(number).encode(), only_new=True)
        except AlreadyExists:
            return
        won.append(number)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1
    assert store.get("contended", 9).data == str(won[0]).encode()


def test_an_upload_is_invisible_until_it_is_complete(store: ObjectStore) -> None:
    upload = store.begin_upload("whole", {"Role": "data"})
    second = store.put_part(upload, 2, b"tail", 4)
    first = store.put_part(upload, 1, [b"x" * PART], PART)
    assert keys(store) == []
    assert list(store.uploads()) == [upload]
    store.complete(upload, [first, second])
    assert keys(store) == ["whole"]
    assert list(store.uploads()) == []
    assert store.head("whole").size == PART + 4
    assert store.head("whole").metadata == {"role": "data"}
    assert bytes(memoryview(store.get_range("whole", PART - 1, 5))) == b"xtail"


def test_parts_that_are_there_are_known_after_a_restart(store: ObjectStore) -> None:
    upload = store.begin_upload("resumed")
    first = store.put_part(upload, 1, b"a" * PART, PART)
    other = pickled(store)  # as in another process
    assert list(other.uploads("res")) == [upload]
    assert other.parts(upload) == [first]
    second = other.put_part(upload, 2, b"b", 1)
    assert other.parts(upload) == [first, second]
    other.complete(upload, other.parts(upload))
    assert store.head("resumed").size == PART + 1
    other.close()


def test_a_part_that_is_put_again_replaces_the_one_before(store: ObjectStore) -> None:
    upload = store.begin_upload("again")
    store.put_part(upload, 1, b"old!", 4)
    new = store.put_part(upload, 1, b"new", 3)
    assert [part.number for part in store.parts(upload)] == [1]
    store.complete(upload, [new])
    assert store.get("again", 9).data == b"new"


def test_completing_again_after_a_lost_answer_is_answered(store: ObjectStore) -> None:
    upload = store.begin_upload("twice")
    part = store.put_part(upload, 1, b"x", 1)
    store.complete(upload, [part])
    store.complete(upload, [part])
    assert store.get("twice", 1).data == b"x"


def test_an_upload_that_was_thrown_away_is_over(store: ObjectStore) -> None:
    upload = store.begin_upload("dropped")
    part = store.put_part(upload, 1, b"x", 1)
    store.abort(upload)
    store.abort(upload)
    assert list(store.uploads()) == []
    with pytest.raises(NotFound):
        store.parts(upload)
    with pytest.raises(NotFound):
        store.complete(upload, [part])
    assert keys(store) == []


def test_a_copy_has_the_bytes_and_its_own_metadata(store: ObjectStore) -> None:
    store.put("source", b"0123456789", {"of": "source"})
    store.copy("source", "copy", {"of": "copy"})
    found = store.get("copy", 10)
    assert (found.data, dict(found.head.metadata)) == (b"0123456789", {"of": "copy"})
    assert store.get("source", 10).head.metadata == {"of": "source"}
    with pytest.raises(NotFound):
        store.copy("missing", "other")


def test_a_large_object_is_copied_in_parts(store: ObjectStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "_COPY_BYTES_MAX", PART_BYTES_MIN)
    data = random.Random(3).randbytes(PART_BYTES_MIN + 1000)
    store.put("source", data)
    store.copy("source", "copy", {"of": "copy"})
    found = store.get("copy", len(data))
    assert (found.data, dict(found.head.metadata)) == (data, {"of": "copy"})
    assert list(store.uploads()) == []


def test_objects_and_uploads_state_their_time(store: ObjectStore) -> None:
    before = system_clock_ms() - 2_000
    store.put("object", b"0")
    upload = store.begin_upload("upload")
    (begun,) = store.begun_uploads("up")
    assert begun.upload == upload
    after = system_clock_ms() + 2_000
    assert before <= begun.begun_ms <= after
    assert before <= store.head("object").modified_ms <= after
    store.abort(upload)


def test_a_small_part_before_the_last_is_refused(store: ObjectStore) -> None:
    upload = store.begin_upload("small")
    parts = [store.put_part(upload, number, b"x", 1) for number in (1, 2)]
    with pytest.raises(Refused):
        store.complete(upload, parts)
    assert keys(store) == []


def test_a_part_that_never_came_is_refused(store: ObjectStore) -> None:
    upload = store.begin_upload("missing")
    with pytest.raises((Refused, NotFound)):
        store.complete(upload, [UploadedPart(1, "d41d8cd98f00b204e9800998ecf8427e", 5)])
    with pytest.raises(Refused, match="without a part"):
        store.complete(upload, [])


@pytest.mark.parametrize("number", [0, 10_001])
def test_numbers_of_parts_have_bounds(store: ObjectStore, number: int) -> None:
    with pytest.raises(Refused, match=str(number)):
        store.put_part(Upload("x", "y"), number, b"", 0)


@pytest.mark.parametrize("key", ["", "/a", "a/", "a//b", "../a", "a/./b", "a\nb", "x" * 1025])
def test_a_key_that_no_store_could_keep_is_refused(store: ObjectStore, key: str) -> None:
    with pytest.raises(Refused, match="object key"):
        store.put(key, b"")


def test_metadata_that_s3_would_not_keep_are_refused(store: ObjectStore) -> None:
    for metadata, message in (
        ({"a": "é"}, "printable ASCII"),
        ({"a": "x\ny"}, "printable ASCII"),
        ({"a": "x" * METADATA_BYTES_MAX}, "S3 keeps 2048"),
        ({"a": "1", "A": "2"}, "only in case"),
    ):
        with pytest.raises(Refused, match=message):
            store.put("a", b"", metadata)
    assert keys(store) == []


@pytest.mark.parametrize("count", [8, 1])
def test_a_file_is_sent_in_parts_or_whole_and_little_of_it_is_ever_held(
    store: ObjectStore, tmp_path: Path, count: int
) -> None:
    path, size = tmp_path / "segment", 8 * PART // count
    path.write_bytes(bytes(range(256)) * (8 * PART // 256))
    parts, progress = [FilePart(number + 1, number * size, size) for number in range(count)], []
    tracemalloc.start()
    upload_file(store, "large", {}, path, parts, threads=4, callbacks=OffloadCallbacks(progress.append, lambda: False))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert progress[-1] == 8 * PART
    assert progress == sorted(progress)
    assert peak < 2 * PART
    assert store.get("large", 8 * PART).data == path.read_bytes()


def test_a_directory_without_room_keeps_nothing_of_what_did_not_fit(tmp_path: Path) -> None:
    store = open_object_store(tmp_path)
    upload = store.begin_upload("large")
    parts = [store.put_part(upload, number, bytes(PART), PART) for number in (1, 2)]
    before = sorted(tmp_path.rglob("*"))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PART, limits[1]))
    try:
        for write in (
            lambda: store.put("whole", bytes(PART + 1)),
            lambda: store.put_part(upload, 3, [bytes(PART + 1)], PART + 1),
            lambda: store.complete(upload, parts),
        ):
            with pytest.raises(OSError, match="File too large"):
                write()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert [path for path in sorted(tmp_path.rglob("*")) if path.name != ".lock"] == before
    store.complete(upload, parts)
    assert store.head("large").size == 2 * PART


def test_what_pickles_is_configuration(store: ObjectStore) -> None:
    store.put("a", b"x")
    again = pickled(store)
    assert again.address == store.address
    assert again.get("a", 1).data == b"x"
    again.close()
