"""Processor time of a broker at full load while its metrics are requested once a second, against the load alone.

Both sides use one broker with 100 ledgers, each with a cursor. A separate process requests `/metrics` every second,
and is stopped during the base's rounds. Its own time does not count, because a monitor runs elsewhere. A round lasts
some seconds, so that it has some requests.

    load          work                                                    processor time of
    append        8,192 entries of 64 KiB, 64 in flight, into a ledger    the broker and the producer
    stream_read   `AvailableNow` over 1 GiB of 120-byte rows into noop    the broker, the JVM and its workers

The ratio is the base's processor time divided by ours. The result is the lower ratio of the two loads.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path

from benchmarks.append import entry_of
from benchmarks.harness import Loop, compare
from benchmarks.processor_time import processor_seconds
from benchmarks.raw_disk import bench_dir
from benchmarks.recording_broker import connected
from benchmarks.rows import fill
from benchmarks.spark_queries import drained, session, start
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.clock import pause
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import CreateLedger, NameLedger
from pyspark_ledger.ledger.protocol.cursors import OpenCursor

ROUNDS = 15
LEDGERS = 100
ENTRIES, ENTRY_BYTES = 8192, 64 * 1024
READ_ENTRIES = 256  # of 4 MiB
_SCRAPER = """
import sys, time, urllib.request
while True:
    urllib.request.urlopen(sys.argv[1], timeout=30).read()
    time.sleep(1)
"""


@contextmanager
def web_broker(directory: Path) -> Iterator[tuple[Client, int, str]]:
    """Yield a client of a new broker, its process id, and the URL of its metrics."""
    log = directory / "log"
    command = [sys.executable, "-m", "pyspark_ledger.ledger.broker.main", "--store", str(directory / "store")]
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "--create", "--idle", "0", "--web", "http://127.0.0.1:0"], stderr=output)
    try:
        client = connected(directory / "store", process)
        while not (found := re.findall(r"status page are served at (\S+)", log.read_text())):
            pause(20)
        yield client, process.pid, f"{found[0]}metrics"
    finally:
        process.terminate()
        process.wait()


class Scraper:
    """Process that scrapes a broker every second while it is on."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen([sys.executable, "-c", _SCRAPER, url])
        self.pid = self._process.pid
        os.kill(self.pid, signal.SIGSTOP)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Scrape during the block."""
        os.kill(self.pid, signal.SIGCONT)
        yield
        os.kill(self.pid, signal.SIGSTOP)

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def processor_loop(work: Callable[[], object], scraper: Scraper, broker: int, *, scraped: bool) -> Loop:
    """Return a loop that does the work, and returns processor seconds without those of the scraper."""

    def seconds() -> float:
        return processor_seconds(os.getpid(), broker) - processor_seconds(scraper.pid)

    def loop() -> float:
        before = seconds()
        if scraped:
            with scraper.on():
                work()
        else:
            work()
        return seconds() - before

    return loop


def append_work(client: Client, ledger: str) -> Callable[[], object]:
    """Return the appends of one round, into a ledger that is deleted afterwards."""
    payload = os.urandom(ENTRY_BYTES - 64)

    def work() -> None:
        client.create(CreateLedger(ledger))
        with client.producer(ledger, max_in_flight_bytes=64 * ENTRY_BYTES) as producer:
            futures = [producer.append(*entry_of(payload, number)) for number in range(ENTRIES)]
            for future in futures:
                future.result()
        client.call("delete", NameLedger(ledger))

    return work


def read_work(store: Path, ledger: str, folder: Path) -> Callable[[], object]:
    """Return the query of one round."""
    spark, numbers = session(), count()

    def work() -> None:
        reader = spark.readStream.format("ledger").option("store", str(store)).option("startingPosition", "earliest")
        drained(start(reader.load(ledger), folder / f"checkpoint{next(numbers)}", available_now=True))

    return work


def main() -> None:
    """Measure both loads. The last line is the lower ratio."""
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name, web_broker(Path(name)) as (client, broker, url):
        for number in range(LEDGERS):
            client.create(CreateLedger(f"ledger{number}"))
            client.open_cursor(OpenCursor(f"ledger{number}", "reader", EARLIEST))
        fill(client, canonical_name("rows"), READ_ENTRIES, 120)
        scraper = Scraper(url)
        try:
            loads = {
                "append": append_work(client, canonical_name("appended")),
                "stream_read": read_work(Path(name) / "store", "rows", Path(name)),
            }
            ratios = [
                compare(
                    f"metrics_cost_{load}",
                    processor_loop(work, scraper, broker, scraped=True),
                    processor_loop(work, scraper, broker, scraped=False),
                    rounds=ROUNDS,
                ).ratio
                for load, work in loads.items()
            ]
        finally:
            scraper.stop()
    print(f"ratio metrics_cost {min(ratios):.3f}")


if __name__ == "__main__":
    main()
