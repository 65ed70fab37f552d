"""Goal: an object in a directory is there after a loss of power, whatever had to be made for it. Method: note which
directories are synced.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.offload.storage.factory import open_object_store


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
