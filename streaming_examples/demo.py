"""Demo: a year of flights through one ledger, while processes are killed; then an audit of every row.

    python -m streaming_examples.demo          (make demo; about three minutes on two cores)

    this process ── batch write, then a streaming sink ──▶ ledger `flights` ──subscription──▶ another process
                                                              ▲                                 daily windows
                                                        SIGKILL its broker                SIGKILL, start again

Midway the demo kills the broker with SIGKILL, and both applications continue. Later it kills the reading application
with its JVM, and restarts it from its checkpoint. This application computes daily windows: flights, delay and wind for
each airport and day. At the end every one of the 336,776 flights is counted exactly once, and the windows equal the
windows that pyarrow computes from the source.

Then the sealed segments (complete files of the ledger) are copied to S3. A query reads the ledger from the beginning,
and Spark reads the bucket without a broker: both find the same rows. The segments are also copied to a Delta table. SQL
returns the same numbers from the table as from the ledger, also for an earlier version. Last, a month is written to a
store in S3, while the broker is killed and its disk is deleted twice. The exit status is 0 only if every check holds.

All state is in `build/demo/`, which is removed at the start. All processes are stopped at the end, also after Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming import StreamingQuery
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from pyspark_ledger import Unavailable, connect, session
from streaming_examples.acts.app_process import AppProcess
from streaming_examples.acts.audit import Check, exactly_once, nothing_dropped, went_on, windows_right
from streaming_examples.acts.batch_files import BatchFiles
from streaming_examples.acts.broker_control import kill_broker, stop_broker, stop_broker_of
from streaming_examples.acts.bucket_act import BucketAct
from streaming_examples.acts.cluster_act import ClusterAct
from streaming_examples.acts.flight_feed import FlightFeed, start_sink, write_batch
from streaming_examples.acts.meter import Meter
from streaming_examples.acts.report import write_report
from streaming_examples.acts.table_act import TableAct
from streaming_examples.acts.tail_app import SUBSCRIPTION
from streaming_examples.flights import FLIGHT_ROWS, flights, weather
from streaming_examples.s3_server import CREDENTIALS, S3Server

BUILD = Path(__file__).resolve().parent.parent / "build" / "demo"
LEDGER = "flights"
BATCH_ROWS = 150_000
FILES = 36
FILE_SECONDS = 1.0
KILL_BROKER_AT, KILL_READER_AT = 12, 22  # after so many files
SPARK_LOG = "spark.log"
PATIENCE_SECONDS = 120.0


class Demo:
    """Run of the demo. `stack` stops the processes that the run starts."""

    def __init__(self, directory: Path, stack: ExitStack, progress: Progress) -> None:
        self.directory, self.stack, self.progress = directory, stack, progress
        self.store, self.tail = directory / "store", directory / "tail"
        self.timings: list[tuple[str, float]] = []
        self.checks: list[Check] = []
        self.sink: StreamingQuery | None = None
        self._written = progress.add_task("written", total=FLIGHT_ROWS)
        self._read = progress.add_task("read and acknowledged", total=FLIGHT_ROWS)
        os.environ.update(CREDENTIALS)  # the broker inherits them, and uses them to offload
        with self.timed("create the store, start its broker"):
            self.api = connect(self.store)
        stack.callback(stop_broker, self.api.client)
        self.meter = Meter(self.api.client, self.api.ledger(LEDGER).name, SUBSCRIPTION)
        stack.callback(self.meter.stop)

    def run(self) -> None:
        """Run the demo, from the first row to the last check."""
        self.prepare()
        self.reader = self.start_reader()
        self.write_first_part()
        self.stream_the_rest()
        self.let_it_finish()
        self.account()
        self.bring_to_a_bucket()
        self.make_a_table()
        self.lose_the_cluster()

    def prepare(self) -> None:
        """Prepare the source and Spark."""
        self.say("reading the flights, starting Spark")
        with self.timed("read the source, prepare files"):
            self.source, self.weather = flights(), weather()
            self.feed = FlightFeed(self.source, self.directory, batch_rows=BATCH_ROWS, files=FILES)
            self.tail.mkdir()
        with self.timed("start an S3 server"):
            self.s3 = S3Server.start(self.directory / "s3")
            self.stack.callback(self.s3.stop)
        # Set these variables before Spark starts: its processes inherit them, and the store in S3 needs them.
        os.environ.update(self.s3.environment, LEDGER_CACHE=str(self.directory / "cluster-disk"))
        with self.timed("start Spark"):
            self.spark = start_spark(self.directory / SPARK_LOG)
            self.stack.callback(self.spark.stop)
            self.spark.sparkContext.setLogLevel("ERROR")

    def write_first_part(self) -> None:
        """Write the flights of the first months as one batch: all of them become visible at once, or none."""
        self.say(f"writing the first {BATCH_ROWS:,} flights as one batch")
        with self.timed(f"batch write of {BATCH_ROWS:,} rows"):
            write_batch(self.spark, self.feed.batch, self.store, LEDGER)

    def start_reader(self) -> AppProcess:
        """Start the second Spark application, which waits for the ledger and tails it. The same call restarts it."""
        self.say("starting the reading application: daily windows with the weather, by subscription")
        arguments = [str(self.store), LEDGER, str(self.tail)]
        reader = AppProcess("streaming_examples.acts.tail_app", arguments, self.directory / "tail.log")
        self.stack.callback(reader.kill)
        return reader

    def stream_the_rest(self) -> None:
        """Write the other flights by the sink, file by file. In between, kill the broker once and the reader once."""
        self.wait("the reader's first rows", lambda: (self.meter.backlog or BATCH_ROWS) < BATCH_ROWS)
        self.sink = start_sink(self.spark, self.feed, self.store, LEDGER, self.directory / "sink-checkpoint")
        self.stack.callback(self.sink.stop)
        self.say(f"streaming the rest: {FILES} files, one each second")
        began = time.monotonic()
        for number in range(FILES):
            if number == KILL_BROKER_AT:
                self.kill_broker()
            if number == KILL_READER_AT:
                self.kill_reader()
            self.feed.drop()
            self.pause_until(began + (number + 1) * FILE_SECONDS)

    def kill_broker(self) -> None:
        """Kill the broker while both applications work."""
        self.wait("the sink's first batches", lambda: self.meter.rows > BATCH_ROWS)
        self.before_kill = (self.meter.rows, self.read_rows())
        self.meter.mark("broker killed")
        before, after, seconds = kill_broker(self.api.client)
        self.timings.append(("from the kill of the broker until its successor answers", seconds))
        self.say(
            f"killed the broker (process {before}); its successor (process {after}) answered {seconds:.2f} s later"
        )
        self.checks.append(Check("another broker answered", before != after, f"after {seconds:.2f} s"))

    def kill_reader(self) -> None:
        """Kill the reading application and its JVM, and start it again."""
        rows, read = self.before_kill
        self.wait(
            "both applications to continue with the new broker",
            lambda: self.meter.rows > rows and self.read_rows() > read,
        )
        went_on_by = f"written {self.meter.rows - rows:,}, read {self.read_rows() - read:,} more rows"
        self.checks.append(Check("sink and reader continued with the new broker", not self.failure(), went_on_by))
        done = BatchFiles(self.tail / "windows").ids()
        self.meter.mark("reader killed")
        self.reader.kill()
        self.say(f"killed the reading application (SIGKILL) after {len(done)} batches; starting it again")
        self.reader = self.start_reader()

    def let_it_finish(self) -> None:
        """Wait until all rows are written and read, and stop the reading application."""
        self.wait("the sink", lambda: self.meter.rows >= FLIGHT_ROWS)
        self.wait("the reader", lambda: self.meter.backlog == 0)
        self.timings.append(("until all rows are written and read, with three starts of Spark", self.meter.seconds()))
        self.say("all rows are written and read; stopping the reading application")
        (self.tail / "stop").touch()
        status = self.reader.wait(PATIENCE_SECONDS)
        self.checks.append(Check("the reading application ended without an error", status == 0, f"status {status}"))
        self.sink.stop()
        self.meter.stop()

    def account(self) -> None:
        """Compare every row and every window with the source."""
        self.say("comparing every flight with the source")
        files, progress = BatchFiles(self.tail / "windows"), self.tail / "progress.jsonl"
        with self.timed("read the ledger without Spark"):
            found = self.api.ledger(LEDGER).read()
        with self.timed("compare rows and windows with the source"):
            self.checks += exactly_once(found, self.source)
            self.checks += windows_right(files, self.source, self.weather)
        self.checks += nothing_dropped(progress, files)
        self.checks += went_on(progress)
        backlog = self.api.ledger(LEDGER).cursor(SUBSCRIPTION).state().backlog_rows
        self.checks.append(Check("the subscription has no backlog", backlog == 0, f"{backlog} rows"))

    def bring_to_a_bucket(self) -> None:
        """Offload the history to S3 and read it from there, with and without the broker."""
        self.say("offloading the history to S3, reading it through the broker and without one")
        act = BucketAct(self.api, LEDGER, self.spark, self.directory, self.s3)
        act.run(self.source, self.store)
        self.checks += act.checks
        self.timings += act.timings

    def make_a_table(self) -> None:
        """Publish the sealed segments to a Delta table, and compare its SQL with the log, also for an earlier
        version.
        """
        self.say("publishing the segments to a Delta table, running the same SQL on table and log")
        act = TableAct(self.api, LEDGER, self.spark, self.directory)
        act.run(self.store, FLIGHT_ROWS)
        self.checks += act.checks
        self.timings += act.timings

    def lose_the_cluster(self) -> None:
        """Write a month to a store in S3, while the broker is killed and its disk is deleted twice."""
        self.say("writing January to a store in S3, killing its broker and deleting its disk twice")
        act = ClusterAct(f"{self.s3.make_bucket('lake')}/flights", self.spark, self.directory / "cluster")
        self.stack.callback(act.stop)
        act.run(self.source)
        self.checks += act.checks
        self.timings += act.timings

    def say(self, what: str) -> None:
        """Print a line with the seconds since the start."""
        self.progress.console.print(f"[dim]{self.meter.seconds():6.1f} s[/]  {what}", highlight=False)

    @contextmanager
    def timed(self, what: str) -> Iterator[None]:
        """Record the duration of the block."""
        began = time.monotonic()
        yield
        self.timings.append((what, time.monotonic() - began))

    def wait(self, what: str, done: Callable[[], bool]) -> None:
        """Wait until `done`. Raises TimeoutError after two minutes without progress, RuntimeError if a process died."""
        seen, until = None, time.monotonic() + PATIENCE_SECONDS
        while not done():
            state = (self.meter.rows, self.meter.backlog)
            if state != seen:
                seen, until = state, time.monotonic() + PATIENCE_SECONDS
            if time.monotonic() > until:
                message = f"waited {PATIENCE_SECONDS:.0f} s for {what}: stuck at {state[0]} rows, backlog {state[1]}"
                raise TimeoutError(message)
            self.look()
            time.sleep(0.05)
        self.look()

    def pause_until(self, moment: float) -> None:
        """Wait until the time `moment`, and update the bars meanwhile."""
        while time.monotonic() < moment:
            self.look()
            time.sleep(0.05)

    def look(self) -> None:
        """Update the bars. Raise the error that ended the sink or the reader."""
        self.progress.update(self._written, completed=self.meter.rows)
        self.progress.update(self._read, completed=self.read_rows())
        self.reader.require_alive()
        if failure := self.failure():
            raise failure

    def read_rows(self) -> int:
        """Return the number of rows that the reader has acknowledged."""
        return 0 if self.meter.backlog is None else self.meter.rows - self.meter.backlog

    def failure(self) -> Exception | None:
        """Return the error that ended the sink, if there is one."""
        return None if self.sink is None else self.sink.exception()


def start_spark(log: Path) -> SparkSession:
    """Start Spark with Delta. If Delta's jars cannot be downloaded, end the demo with a message and no traceback."""
    conf = {"spark.sql.shuffle.partitions": 2, "spark.ui.showConsoleProgress": "false"}
    try:
        return session("flights", delta=True, **{"spark.master": "local[2]", **conf})
    except Unavailable as error:
        message = f"The demo needs Delta's jars. {error}. See {log}"
        raise SystemExit(message) from None


@contextmanager
def errors_to(log: Path) -> Iterator[None]:
    """Redirect standard error of this process and its JVM to a file; raised errors are still shown."""
    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


def main() -> int:
    """Run the demo in a clean directory. Return the exit status."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    stop_broker_of(BUILD / "store")
    shutil.rmtree(BUILD, ignore_errors=True)
    BUILD.mkdir(parents=True)
    console = Console() if sys.stdout.isatty() else Console(width=110)
    console.print(f"Spark's messages go to {BUILD / SPARK_LOG} and {BUILD / 'tail.log'}", highlight=False)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with ExitStack() as stack:
        stack.enter_context(errors_to(BUILD / SPARK_LOG))
        with Progress(*columns, console=console, transient=True) as progress:
            demo = Demo(BUILD, stack, progress)
            demo.run()
        write_report(demo.checks, demo.timings, demo.meter, BUILD, console)
    return 0 if all(check.held for check in demo.checks) else 1


if __name__ == "__main__":
    sys.exit(main())
