"""Listeners of a session that do not keep the process alive.

Rule: each listener of this package is removed when the main thread has ended and the listener's work is done. Reason:
a client of Spark Connect ends only when its event thread ends. This thread waits until the last listener is removed.

Rule: `stop()` of such a client first finishes the work of the session's listeners. Reason: `spark-pipelines` stops its
session as soon as the last query of the run has ended. The events of this query may still be on their way.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from pyspark_ledger.connector.spark_features import is_connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.listener import StreamingQueryListener

_log = logging.getLogger(__name__)


def add_listener(
    spark: SparkSession, listener: StreamingQueryListener, at_exit: Callable[[], object] = lambda: None
) -> None:
    """Add a listener. `at_exit` is called once when the process ends.

    An error of `at_exit` is only logged, because the session may have stopped already.
    """
    spark.streams.addListener(listener)

    def finish() -> None:
        try:
            at_exit()
        except Exception as error:  # noqa: BLE001  # the process ends, so no caller can handle the error
            _log.debug("a listener was not waited for: %s", error)

    if not is_connect(spark):
        atexit.register(finish)
        return

    stop = spark.stop

    def leave() -> None:
        finish()
        spark.streams.removeListener(listener)  # a repeated call changes nothing

    def leave_and_stop() -> None:
        leave()
        stop()

    def leave_at_end() -> None:
        threading.main_thread().join()
        leave()

    spark.stop = leave_and_stop  # type: ignore[method-assign]
    threading.Thread(target=leave_at_end, name="ledger-leaving", daemon=True).start()
