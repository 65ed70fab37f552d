"""Time to the first rows of the status page of a store with 10,000 ledgers, and the bytes of the page.

Each round starts a broker, so that no ledger is open and no metrics are sampled yet. A client fetches the page's four
files and opens the stream of events, as a browser does. The time ends when the first event with rows has arrived. It
does not include the browser's time to draw 50 rows. The bytes are those of the files and of that event, uncompressed.

The line before the last line has the kB of the page. The last line is the median of the seconds.
"""

from __future__ import annotations

import http.client
import statistics
import tempfile
import time
from pathlib import Path
from urllib.parse import urlsplit

from benchmarks.metrics_cost import web_broker
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cursors import OpenCursor

LEDGERS = 10_000
ROUNDS = 7
FILES = ("/", "/page.css", "/page.js", "/icon.svg")


def fetched(url: str) -> tuple[float, int]:
    """Return the seconds until the first event, and the bytes that were read."""
    parts, size, started = urlsplit(url), 0, time.perf_counter()
    connection = http.client.HTTPConnection(str(parts.hostname), parts.port, timeout=60)
    for path in FILES:
        connection.request("GET", path)
        size += len(connection.getresponse().read())
    connection.request("GET", "/events?sort=name")
    answer = connection.getresponse()
    while not (line := answer.readline()).startswith(b"data:"):
        size += len(line)
    seconds = time.perf_counter() - started
    connection.close()
    return seconds, size + len(line)


def main() -> None:
    """Measure all rounds. The last line is the median of the seconds."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        with web_broker(Path(name)) as (client, _, _):
            for number in range(LEDGERS):
                client.create(CreateLedger(f"ledger{number:05}", lists=False))
                if number % 10 == 0:
                    client.open_cursor(OpenCursor(f"ledger{number:05}", "reader", EARLIEST))
        rounds = []
        for _ in range(ROUNDS):
            with web_broker(Path(name)) as (_, _, url):
                rounds.append(fetched(url.removesuffix("metrics")))
    for seconds, size in rounds:
        print(f"  {seconds:.3f} s  {size / 1000:.1f} kB")
    print(f"ratio status_page_kilobytes {statistics.median(size for _, size in rounds) / 1000:.1f}")
    print(f"ratio status_page_seconds {statistics.median(seconds for seconds, _ in rounds):.3f}")


if __name__ == "__main__":
    main()
