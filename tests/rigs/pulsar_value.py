"""Values of metadata as Pulsar writes them, plain or compressed."""

from __future__ import annotations

import struct

from pyspark_ledger.ledger.message.compression import NONE, compress
from pyspark_ledger.ledger.metadata.pulsar_value import Info
from pyspark_ledger.ledger.proto.managed_ledger_pb2 import (
    ManagedCursorInfoMetadata,
    ManagedLedgerInfo,
    ManagedLedgerInfoMetadata,
)


def serialise_info(info: Info, compression: int = NONE) -> bytes:
    plain = info.SerializeToString()
    if compression == NONE:
        return plain
    kind = ManagedLedgerInfoMetadata if isinstance(info, ManagedLedgerInfo) else ManagedCursorInfoMetadata
    head = kind(compressionType=compression, uncompressedSize=len(plain)).SerializeToString()
    return b"".join((b"\x47\x78", struct.pack(">I", len(head)), head, compress(compression, plain)))
