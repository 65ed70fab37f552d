"""Seconds from the seal of a segment until its rows are visible in the Delta table, over an empty Delta commit.

A publisher runs in the background, and looks for sealed segments every half second. Each measurement appends a few
rows, seals the segment and waits for the commit of the table. The base is one commit without rows to another table on
the same disk. The ratio is of times.
"""

from __future__ import annotations

import threading
import time
from itertools import count

from benchmarks.delta_tables import tables
from benchmarks.harness import compare

EVERY_MS = 500
_SECONDS = 120.0


def main() -> None:
    """Print `ratio publish_lag`."""
    with tables(1) as bench:
        table, plain, stop, numbers = bench.folder / "ours", bench.folder / "plain", threading.Event(), count()
        publisher = bench.publisher(table)
        publisher.publish()
        empty = bench.spark.range(1).where("false")
        empty.write.format("delta").save(str(plain))
        runner = threading.Thread(target=publisher.run, args=(lambda _: None, EVERY_MS, stop), daemon=True)
        runner.start()
        lags = []

        def ours() -> float:
            bench.ledger.append([{"a": next(numbers), "b": 1, "body": b"x"}])
            commits = len(list((table / "_delta_log").glob("*.json")))
            bench.ledger.seal()
            began = time.perf_counter()
            while len(list((table / "_delta_log").glob("*.json"))) == commits:
                if time.perf_counter() - began > _SECONDS or not runner.is_alive():
                    raise TimeoutError("the publisher published nothing")
                time.sleep(0.005)
            lags.append(time.perf_counter() - began)
            return lags[-1]

        def base() -> None:
            empty.write.format("delta").mode("append").save(str(plain))

        try:
            compare("publish_lag", ours, base, of_time=True)
        finally:
            stop.set()
            runner.join()
        print(f"seconds from seal to visible: at most {max(lags[1:]):.2f}")


if __name__ == "__main__":
    main()
