"""Settings that a client changed at run time. A move copies them between the file of a directory and a manifest.

Settings of offloads are not copied. Reason: they name the target of offloads. For a store in a bucket, the target is
always its own bucket.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from msgspec import UNSET, UnsetType

from pyspark_ledger.ledger.broker.live_settings import store_changes, stored_changes
from pyspark_ledger.ledger.settings.offload import OffloadSettings

Changed = dict[str, int | str]
_OF_OFFLOADS = frozenset(field.name for field in fields(OffloadSettings))


def changed_settings(directory: Path) -> Changed | UnsetType:
    """Return the changed settings in the file of a directory, for the manifest.

    Raises Refused if the file is invalid.
    """
    return _moving(stored_changes(directory)) or UNSET


def write_changed_settings(directory: Path, changed: Changed | UnsetType) -> None:
    """Write the changed settings of a manifest to a directory."""
    store_changes(directory, _moving({} if isinstance(changed, UnsetType) else changed))


def _moving(changed: Mapping[str, int | str]) -> Changed:
    return {name: value for name, value in changed.items() if name not in _OF_OFFLOADS}
