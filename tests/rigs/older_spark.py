"""Driver of a stream reader with the calls of Spark 4.0 and 4.1, in the order recorded on 4.0.5 and 4.1.4.

The offset log and the commit log outlive a run, like a checkpoint. `fail_after` ends a run after one of its calls.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from pyspark_ledger.connector.read.stream_reader import LedgerStreamReader
from pyspark_ledger.connector.spark_features import SparkFeatures
from tests.rigs.stream import rows, text

CALLS = ("latestOffset", "initialOffset", "commit", "offset log", "partitions", "rows", "commit log")
OLDER_SPARK = SparkFeatures(arrow_stream_writer=False, admission_control=False, progress_report=False)


class Killed(Exception):  # the end of a run, not an error
    """End of a run after one of its calls."""


class OlderSpark:
    """Query on a Spark release that passes no limits to the source. `read_rows` are the rows of committed batches, in
    order."""

    def __init__(self, make_reader: Callable[[], LedgerStreamReader]) -> None:
        self.make_reader = make_reader
        self.states_newest_offset = True
        self.offset_log: list[str] = []
        self.committed = 0
        self.read_rows: list[int] = []
        self.batch_sizes: list[int] = []
        self._reader: LedgerStreamReader | None = None
        self._fail_after = ""

    def run(self, triggers: int, fail_after: str = "") -> None:
        """Start a run of the query, and give it some triggers."""
        self._fail_after = fail_after
        self._reader = reader = self.make_reader()
        reader._features = OLDER_SPARK
        with suppress(Killed):
            if self.offset_log and self.states_newest_offset:
                newest = json.loads(self.offset_log[-1])
                assert list(reader.partitions(newest, text(newest))) == []
            if self.committed < len(self.offset_log):
                self._run_batch(reader)
            for _ in range(triggers):
                self._trigger(reader)
        reader.stop()  # otherwise the test would wait until the lease of the killed run expires

    def progress(self) -> dict[str, Any]:
        """Return one source of the progress, as such a Spark reports the last batch."""
        return {"latestOffset": None, "endOffset": json.loads(self.offset_log[-1])}

    def _trigger(self, reader: LedgerStreamReader) -> None:
        end = json.dumps(reader.latestOffset())
        self._called("latestOffset")
        if self.offset_log and end == self.offset_log[-1]:
            return
        if self.offset_log:
            reader.commit(json.loads(self.offset_log[-1]))
            self._called("commit")
        self.offset_log.append(end)
        self._called("offset log")
        self._run_batch(reader)

    def _run_batch(self, reader: LedgerStreamReader) -> None:
        end = json.loads(self.offset_log[-1])
        if len(self.offset_log) > 1:
            start = json.loads(self.offset_log[-2])
        else:
            start = text(reader.initialOffset())
            self._called("initialOffset")
        reader.partitions(start, end)
        self._called("partitions")
        found = rows(reader, start, end)
        self._called("rows")
        self.read_rows += found
        self.batch_sizes.append(len(found))
        self.committed = len(self.offset_log)
        self._called("commit log")

    def _called(self, call: str) -> None:
        if call == self._fail_after:
            raise Killed
