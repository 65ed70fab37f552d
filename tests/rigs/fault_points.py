"""Data source `stopping`: the sink of `ledger`, which stops at places that a test has armed.

    staged        a task has staged its part, and has not sent its message
    committing    the driver has all messages, and has not committed
    committed     the batch is in the log, and Spark has not recorded it

The first process that reaches an armed place renames `<place>.armed` to `<place>.<pid>.reached`. It waits there until
the test deletes the file or kills the process. So a test knows that the kill happened at this place.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark_ledger.connector.default_source import DefaultSource
from pyspark_ledger.connector.spark_features import stream_writer_classes
from tests.rigs.deadline import wait_until

OPTION = "faultPoints"
_WAIT_SECONDS = 120.0
_REACH_SECONDS = 300.0  # a driver that starts again needs more than one minute on a busy machine


def reach(points: Path, place: str) -> None:
    """Stop at a place if it is armed."""
    reached = points / f"{place}.{os.getpid()}.reached"
    try:
        (points / f"{place}.armed").rename(reached)
    except FileNotFoundError:
        return
    until = time.monotonic() + _WAIT_SECONDS
    while reached.exists() and time.monotonic() < until:
        time.sleep(0.005)


class FaultPoints:
    """Directory of the places, with which a test arms a place and releases a stopped process."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)

    def arm(self, place: str) -> None:
        (self.directory / f"{place}.armed").touch()

    def reached(self, place: str) -> int:
        """Wait until a process has reached the armed place. Return its id."""
        reached = f"{place}.*.reached"
        wait_until(lambda: list(self.directory.glob(reached)), f"a process reaches {place!r}", _REACH_SECONDS)
        (found,) = self.directory.glob(reached)
        return int(found.name.split(".")[1])

    def release(self) -> None:
        """Let the stopped process continue. Disarm all places."""
        for path in self.directory.iterdir():
            with suppress(FileNotFoundError):
                path.unlink()


class StoppingWriter(*stream_writer_classes()):  # type: ignore[misc]  # the classes of the running Spark
    """Stream writer that stops at armed places."""

    def __init__(self, writer: Any, points: Path) -> None:
        self._writer, self._points = writer, points

    def write(self, iterator: Iterator[Any]) -> Any:
        message = self._writer.write(iterator)
        reach(self._points, "staged")
        return message

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        reach(self._points, "committing")
        self._writer.commit(messages, batchId)
        reach(self._points, "committed")

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        self._writer.abort(messages, batchId)


class StoppingSource(DefaultSource):
    """Data source with the options of `ledger`, and the directory of the places."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._points = Path(options.pop(OPTION))
        super().__init__(options)

    @classmethod
    def name(cls) -> str:
        return "stopping"

    def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
        return StoppingWriter(super().streamWriter(schema, overwrite), self._points)
