"""Settings that a client changed at run time, as they move with a store: from the file of a directory to the manifest.

Settings of offloads stay behind. Reason: they name the target of segments, and the bucket of a store is its
only target.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

import msgspec
from msgspec import UNSET, UnsetType

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.settings.offload import OffloadSettings

Changed = dict[str, int | str]
_FILE = "settings.json"
_OF_OFFLOADS = frozenset(field.name for field in fields(OffloadSettings))


def changed_settings(directory: Path) -> Changed | UnsetType:
    """Return the changed settings of a directory that the manifest gets. Raises Refused if their file is invalid."""
    path = directory / _FILE
    try:
        changed = msgspec.json.decode(path.read_bytes(), type=Changed)
    except FileNotFoundError:
        return UNSET
    except JSON_FAULTS as wrong:
        raise Refused(f"{path}: {json_fault(wrong)}", hint="Correct or delete the file") from wrong
    return _moving(changed) or UNSET


def write_changed_settings(directory: Path, changed: Changed | UnsetType) -> None:
    """Write the changed settings of a manifest to a directory. The caller syncs the file."""
    path = directory / _FILE
    path.unlink(missing_ok=True)
    if isinstance(changed, UnsetType) or not _moving(changed):
        return
    fd = disk.create_file(path)
    try:
        disk.write_all(fd, [msgspec.json.encode(_moving(changed))], 0, path)
    finally:
        os.close(fd)


def _moving(changed: Mapping[str, int | str]) -> Changed:
    return {name: value for name, value in changed.items() if name not in _OF_OFFLOADS}
