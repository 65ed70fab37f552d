"""Goal: an object in a directory survives a power loss, with all its folders, and a listing skips no object.

Method: the synced directories are recorded; unreadable directories are made.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.objects.factory import open_object_store


@pytest.mark.parametrize("key", ["object", "folder/below/object"])
def test_the_way_to_the_first_object_of_new_folders_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    synced: set[Path] = set()
    real = disk.sync_directory

    def sync(directory: Path) -> None:
        real(directory)
        synced.add(directory)

    monkeypatch.setattr(disk, "sync_directory", sync)
    root = tmp_path / "new" / "objects"
    store = open_object_store(root)
    try:
        store.put(key, b"data")
    finally:
        store.close()
    way = [(root / key).parent, *(root / key).parent.parents]
    assert set(way[: way.index(tmp_path) + 1]) <= synced


def test_a_folder_that_cannot_be_listed_is_named(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    for _ in range(20):  # a path that is longer than the system allows
        os.mkdir("x" * 250, dir_fd=folder)
        below = os.open("x" * 250, os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = below
    os.close(folder)
    with pytest.raises(Refused, match=f"{tmp_path}/xxx.* cannot be listed: File name too long"):
        list(open_object_store(tmp_path).objects())


def test_an_object_that_cannot_be_looked_at_is_named(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(Refused, match=f"{tmp_path}/loop cannot be listed: Too many levels"):
        list(open_object_store(tmp_path).objects())
    (tmp_path / "loop").unlink()
    (tmp_path / "gone").symlink_to("nowhere")
    assert list(open_object_store(tmp_path).objects()) == []
