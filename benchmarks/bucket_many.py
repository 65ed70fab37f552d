"""Appends to 100 ledgers of a store in a bucket at once, against as many bytes to one ledger of the store."""

from __future__ import annotations

from benchmarks.bucket_store import append_all, bucket_bench, entries, ledger
from benchmarks.harness import compare

LEDGERS, TURNS = 100, 8


def main() -> None:
    """Compare in turns."""
    batch = entries(LEDGERS)
    with bucket_bench() as bench, bench.open() as opened:
        logs = [ledger(opened, f"log{number}") for number in range(LEDGERS)]
        single = ledger(opened, "single")
        for log in logs:
            append_all(log, batch[:1])

        def ours() -> None:
            for _ in range(TURNS):
                futures = [log.append([entry]) for log, entry in zip(logs, batch, strict=True)]
                for future in futures:
                    future.result()

        def base() -> None:
            for _ in range(TURNS):
                append_all(single, batch)

        compare("bucket_many", ours, base, work_bytes=TURNS * sum(map(len, batch)))


if __name__ == "__main__":
    main()
