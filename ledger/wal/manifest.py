"""Manifest of a store in a bucket: the only object that is ever replaced. It names the broker of the store.

    {"format": 2, "store_id": …, "epoch": 3, "revision": 17, "nonce": …, "snapshot": {…}, "first": 1200, "window": 8,
     "broker": {"address": …, "process": …, "secret": …},
     "move": {"state": "arriving", "directory": …, "host": …}, "settings": {"name": number or text},
     "home": "s3://lake/ledgers", "former": ["<id>"], "acknowledged": 1207, "crc32c": 305419896}

Invariants
- `crc32c` is the last member. It is the checksum of all bytes before the comma in front of this member. If any bit is
  damaged, `decode_manifest` raises `Corrupt`.
- A put replaces the manifest only if the bucket still has the old manifest. The condition of the put is the etag (S3's
  id of an object's content). Each replacement raises `revision` by one.
- Each new broker raises `epoch`. `first` is the number of the oldest log object that is still needed. `window` is the
  number of log objects that may be unacknowledged at the same time.
- All log objects with a number below `acknowledged` were acknowledged when the manifest was put. Format 1 lacks this
  field.
- `epoch`, `first`, `window` and `acknowledged` never fall. `window` changes only together with `epoch`.
- `nonce` is the random id of a broker. If the response to a put was lost, the broker recognizes its own put by `nonce`
  and `revision`.
- The manifest contains no secret. `secret` is the name of the object that contains the secret.
- While a manifest has the field `move`, no broker serves the store.
- `home` names the bucket and the prefix of the store. So a copy of the objects at another prefix is told apart. It is
  missing until a broker of format 2 has served the store.
- `former` are the earlier ids of a copy, oldest first. The log of a copy has objects with these ids.
- `settings` are the settings that a client changed at run time. The field is missing if there are none.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from pyspark_ledger.ledger.checksum import crc32c
from pyspark_ledger.ledger.errors import Corrupt, Unsupported

FORMAT: Literal[2] = 2
"""Format 2 has `home`, `former` and `acknowledged`."""
BYTES_MAX = 64 * 1024


class SnapshotName(msgspec.Struct, frozen=True):
    """Name and checksum of the newest snapshot, the object with all records.

    `records_from` is the number of the first log object with records that the snapshot lacks.
    """

    key: str
    records_from: int
    size: int
    crc32c: int


class BrokerAddress(msgspec.Struct, frozen=True):
    """Address of the broker, identity of its process, and the name of the object with the broker's credentials."""

    address: str
    process: str
    secret: str = ""


class Move(msgspec.Struct, frozen=True):
    """Move of the store between this bucket and a directory of a host.

    States: `arriving` is an incomplete move from the directory into the bucket. Earlier versions also moved a store to
    a directory. `leaving` is such a move that is incomplete. `left` means that the store is in the directory.
    """

    state: Literal["arriving", "leaving", "left"]
    directory: str
    host: str


class StoreManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """State of the store.

    `first` is the first live number: the number of the oldest log object that is still needed.
    """

    store_id: str
    nonce: str
    format: Literal[1, 2] = FORMAT
    epoch: int = 0
    revision: int = 0
    first: int = 0
    window: int = 1
    snapshot: SnapshotName | None = None
    broker: BrokerAddress | None = None
    move: Move | msgspec.UnsetType = msgspec.UNSET
    settings: dict[str, int | str] | msgspec.UnsetType = msgspec.UNSET
    home: str | msgspec.UnsetType = msgspec.UNSET
    former: list[str] | msgspec.UnsetType = msgspec.UNSET
    acknowledged: int = 0

    @property
    def former_ids(self) -> list[str]:
        return self.former or []

    @property
    def stated_end(self) -> int:
        """The number below which no log object may be missing, except objects below `first`.

        A snapshot is put after all records of lower numbers are acknowledged.
        """
        return max(self.acknowledged, 0 if self.snapshot is None else self.snapshot.records_from)


_SUM = b',"crc32c":'
_RESTORE = "Restore the newest sound version of the object"


class _Format(msgspec.Struct):
    format: int


_decode = msgspec.json.Decoder(StoreManifest).decode
_decode_format = msgspec.json.Decoder(_Format).decode


def encode_manifest(manifest: StoreManifest) -> bytes:
    body = msgspec.json.encode(msgspec.structs.replace(manifest, format=FORMAT))[:-1]
    return body + _SUM + b"%d}" % crc32c(body)


def decode_manifest(data: bytes, where: str) -> StoreManifest:
    """Return the manifest. Raises Corrupt for damage, and Unsupported for a newer format.

    All formats end with `crc32c`, so a manifest of a newer format is checked for damage too.
    """
    body, _, stated = data.rpartition(_SUM)
    found = crc32c(body)
    if stated != b"%d}" % found:
        shown = stated[:20].decode(errors="replace")
        raise Corrupt(f"{where}: CRC32C {found} of {len(body)} bytes, stated is {shown!r}", hint=_RESTORE)
    try:
        number = _decode_format(data).format
        if number > FORMAT:
            raise Unsupported(
                f"{where} has format {number}, this version reads formats 1 to {FORMAT}",
                hint="Use a newer version of this package",
            )
        return _decode(body + b"}")
    except msgspec.MsgspecError as error:
        raise Corrupt(f"{where} is not a manifest: {error}", hint=_RESTORE) from error


def require_successor(before: StoreManifest, after: StoreManifest, where: str) -> None:
    """Raise Corrupt if the manifest `after` must not replace the manifest `before`."""
    same_epoch = before.epoch == after.epoch
    copied = after.former_ids == [*before.former_ids, before.store_id]
    kept = (
        (copied or (before.store_id, before.former_ids) == (after.store_id, after.former_ids))
        and after.revision == before.revision + 1
        and after.epoch >= before.epoch
        and after.first >= before.first
        and after.window >= before.window
        and after.acknowledged >= before.acknowledged
        and (not same_epoch or (after.window == before.window and after.nonce == before.nonce))
    )
    if not kept:
        raise Corrupt(f"{where}: {after} cannot replace {before}")
