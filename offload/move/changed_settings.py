"""Settings that a client changed at run time. A move copies them from the file of a directory into the manifest.

Settings of offloads are not copied. Reason: they name the target of offloads. For a store in a bucket, the target is
always its own bucket.
"""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from msgspec import UNSET, UnsetType

from pyspark_ledger.ledger.broker.live_settings import stored_changes
from pyspark_ledger.ledger.settings.offload import OffloadSettings

Changed = dict[str, int | str]
_OF_OFFLOADS = frozenset(field.name for field in fields(OffloadSettings))


def changed_settings(directory: Path) -> Changed | UnsetType:
    """Return the changed settings in the file of a directory, for the manifest.

    Raises Refused if the file is invalid.
    """
    changed = {name: value for name, value in stored_changes(directory).items() if name not in _OF_OFFLOADS}
    return changed or UNSET
