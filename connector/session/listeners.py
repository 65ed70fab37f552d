"""Adding a listener to a session so that the process can end: with Spark Connect that takes its removal.

Rule: a client of Spark Connect waits, when it ends, for the thread that delivers its events, and that thread ends with
the last listener. So each of ours is removed once the main thread is done and what it still has to do is done.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

_log = logging.getLogger(__name__)


def add_listener(
    spark: SparkSession, listener: StreamingQueryListener, at_exit: Callable[[], object] = lambda: None
) -> None:
    """Add it; `at_exit` is called, once, when the process ends. An error of it is logged: the session may be gone."""
    spark.streams.addListener(listener)

    def finish() -> None:
        try:
            at_exit()
        except Exception as error:  # noqa: BLE001  # nobody is left to handle it
            _log.debug("a listener was not waited for: %s", error)

    if not is_connect(spark):
        atexit.register(finish)
        return

    def leave() -> None:
        threading.main_thread().join()
        finish()
        spark.streams.removeListener(listener)

    threading.Thread(target=leave, name="ledger-leaving", daemon=True).start()


def is_connect(spark: SparkSession) -> bool:
    return type(spark).__module__.startswith("pyspark.sql.connect")
