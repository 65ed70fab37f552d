"""Worker of tests: a process that reads a cursor in a loop, and writes to a file what it received and acknowledged.

    python -m tests.rigs.loop_worker STORE ACK FILE [LEASE_MS]

Each line is one word and the ids of a batch: `received` before and `acknowledged` after the acknowledgement. The word
is `lost` if another reader has the lease.
"""

from __future__ import annotations

import os
import sys

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.consumer import lease
from pyspark_ledger.ledger.errors import LeaseLost


def main(store: str, ack: str, file: str, lease_ms: str = "") -> None:
    """Work until the process is killed."""
    if lease_ms:
        lease.LEASE_MS = int(lease_ms)
        lease._RENEW_MS = int(lease_ms) // 3
    out = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(word: str, ids: list[int]) -> None:
        os.write(out, f"{word} {' '.join(map(str, ids))}\n".encode())

    with connect(store).ledger("orders").cursor("billing").batches(max_rows=40, ack=ack) as batches:
        for batch in batches:
            ids = batch.table.column("id").to_pylist()
            write("received", ids)
            if ack == "explicit":
                try:
                    batch.acknowledge()
                except LeaseLost:
                    write("lost", ids)
                    return
                write("acknowledged", ids)


if __name__ == "__main__":
    main(*sys.argv[1:])
