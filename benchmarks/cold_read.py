"""Read of an offloaded segment of 1 GiB through the broker's code, against bare GETs of the same ranges.

Each round opens the segment again with an empty cache. It reads the block index, the entry index, and then blocks of
4 MiB in order. Ours checks that each block consists of whole entries. The base fetches the same ranges with the same
number of threads, and drops them. Both use the same SeaweedFS, and the same settings of boto3.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from botocore.endpoint import Endpoint

from benchmarks.harness import compare
from benchmarks.offload import BUCKET, EXTRA, bucket_and_ledger
from pyspark_ledger.ledger.segment.reader import blocks, frame_table
from pyspark_ledger.offload.format.object_names import ObjectKey
from pyspark_ledger.offload.offloader import ObjectStoreOffloader

_WINDOW_BYTES = 16 * 1024 * 1024
_BLOCK_BYTES = 4 * 1024 * 1024
_THREADS = 4


@contextmanager
def counted_requests() -> Iterator[Callable[[], int]]:
    """Count the requests of all boto3 clients, without retries."""
    send, count = Endpoint.make_request, itertools.count(1)
    sent = 0

    def counting(*words: Any, **named: Any) -> Any:
        nonlocal sent
        sent = next(count)
        return send(*words, **named)

    Endpoint.make_request = counting
    try:
        yield lambda: sent
    finally:
        Endpoint.make_request = send


def main() -> None:
    """Compare both reads in turns."""
    with bucket_and_ledger() as (server, local), counted_requests() as sent:
        copies = ObjectStoreOffloader(
            f"s3://{BUCKET}", server.options, read_threads=_THREADS, window_bytes=_WINDOW_BYTES
        )
        attempt = uuid.uuid4()
        copies.offload(local, attempt, EXTRA)
        key, client = ObjectKey(attempt, local.ledger_id), server.client()
        requests: list[int] = []

        def ours() -> None:
            before = sent()
            ledger = copies.read_offloaded(local.ledger_id, attempt, copies.driver)
            places = ledger.index(0, local.entries)
            for block in blocks(places, local.path, local.ledger_id, 0, local.entries, _BLOCK_BYTES):
                frames = ledger.read(block.first_entry, block.entries)
                frame_table(frames, local.ledger_id, block.first_entry, block.entries)
            ledger.close()
            requests.append(sent() - before)

        def fetch(start: int) -> int:
            end = min(start + _WINDOW_BYTES, local.file_bytes) - 1
            answer = client.get_object(Bucket=BUCKET, Key=key.data_name, Range=f"bytes={start}-{end}")
            return len(answer["Body"].read())

        def base() -> None:
            with ThreadPoolExecutor(_THREADS) as pool:
                sum(pool.map(fetch, range(0, local.file_bytes, _WINDOW_BYTES)))

        compare("cold_read", ours, base, work_bytes=local.file_bytes)
        print(f"requests per GiB: {max(requests) * 2**30 / local.file_bytes:.0f}")
        copies.close()


if __name__ == "__main__":
    main()
