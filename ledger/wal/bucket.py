"""Names of the objects in the bucket of a store.

The *epoch* in the name of an object is a number that each new broker of the store raises.
"""

from __future__ import annotations

MANIFEST = "manifest"
LOG_PREFIX = "wal/"
SNAPSHOT_PREFIX = "snapshot/"
SECRET_PREFIX = "secret/"  # noqa: S105 — a name, not a secret


def log_key(number: int) -> str:
    return f"{LOG_PREFIX}{number:020d}"


def number_of(key: str) -> int:
    """Return the number in the key of a log object."""
    return int(key.removeprefix(LOG_PREFIX))


def snapshot_key(number: int, epoch: int, nonce: str) -> str:
    return f"{SNAPSHOT_PREFIX}{number:020d}-{epoch:020d}-{nonce}"


def secret_key(epoch: int, nonce: str) -> str:
    return f"{SECRET_PREFIX}{epoch:020d}-{nonce}"


def epoch_of(key: str) -> int:
    """Return the epoch in the key of a snapshot or a secret."""
    parts = key.rpartition("/")[2].split("-")
    return int(parts[1] if key.startswith(SNAPSHOT_PREFIX) else parts[0])
