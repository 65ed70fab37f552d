"""Goal: a reader that waits for a window gets it, although other readers evict windows or close meanwhile.

Method: a store whose answers a test controls, one fetching thread, and readers in threads.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from pyspark_ledger.ledger.checksum import Buffer
from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.objects.directory import DirectoryStore
from pyspark_ledger.offload.window_cache import WindowCache, WindowedObject

DATA = bytes(range(250))


class GatedStore(DirectoryStore):
    """A directory that answers after `go` is set."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.asked, self.go = threading.Event(), threading.Event()

    def get_range(self, key: str, start: int, length: int) -> Buffer:
        """Return the bytes after `go` is set."""
        self.asked.set()
        assert self.go.wait(60)
        return super().get_range(key, start, length)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[GatedStore]:
    for name in ("one", "two"):
        (tmp_path / name).write_bytes(DATA)
    store = GatedStore(tmp_path)
    yield store
    store.go.set()


def test_window_with_a_waiter_is_not_cancelled_for_another_reader(store: GatedStore) -> None:
    windows = WindowCache(10, 20, threads=1)
    with ThreadPoolExecutor(2) as readers:
        first = readers.submit(windows.read, WindowedObject(store, "one", len(DATA), 0), 0, 30)
        assert store.asked.wait(60)
        while len(windows._windows) < 3:  # the windows wait for the only thread
            pass
        second = readers.submit(windows.read, WindowedObject(store, "two", len(DATA), 0), 0, 30)
        while not any(key[1] == "two" for key in list(windows._windows)):
            pass
        store.go.set()
        assert bytes(first.result(60)) == bytes(second.result(60)) == DATA[:30]
    assert not windows._awaited
    assert not windows._awaited
    assert bytes(windows.read(WindowedObject(store, "one", len(DATA), 0), 0, 10)) == DATA[:10]
    assert len(windows._windows) <= 2
    windows.close()


def test_who_waits_when_it_is_closed_is_told_to_read_again(store: GatedStore) -> None:
    windows = WindowCache(10, 100, threads=1)
    with ThreadPoolExecutor(1) as readers:
        waiting = readers.submit(windows.read, WindowedObject(store, "one", len(DATA), 0), 0, 50)
        assert store.asked.wait(60)
        while len(windows._windows) < 5:
            pass
        windows.close()
        store.go.set()
        with pytest.raises(Unavailable, match="one: the reader of the object was closed"):
            waiting.result(60)
