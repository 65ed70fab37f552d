"""Log lines as JSON, one object a line.

    {"time":"2026-11-24T09:00:00.123Z","level":"INFO","logger":"pyspark_ledger.steps","pid":7,"thread":"sync-0",
     "message":"sync","batch":"<query>:3","trigger":"<query>:3","step":"sync","ledger":"…","rows":100}

Rules
- Text is the default. The setting `logFormat` of a broker selects JSON. For a process of the connector, the environment
  variable `LEDGER_LOG_FORMAT` selects it. Lines of steps (`ledger.logs.steps`) appear in JSON only.
- A line has the fields above and no other field of Python's log record. Every field is text or a number.
- An error adds `error` and `traceback`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from datetime import UTC, datetime

import msgspec

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.logs.batch import current_batch
from pyspark_ledger.ledger.logs.steps import FIELDS, STEPS
from pyspark_ledger.ledger.settings.service import LOG_FORMATS

VARIABLE = "LEDGER_LOG_FORMAT"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_PACKAGE = logging.getLogger("pyspark_ledger")


class JsonLines(logging.Formatter):
    """Formatter of a record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, with the batch of the current thread. Logging calls this method in the thread that logs."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        line: dict[str, object] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "pid": record.process,
            "thread": record.threadName,
            "message": record.getMessage(),
        }
        batch = current_batch()
        if batch is not None:
            line["batch"] = batch.batch
            line |= {"trigger": batch.trigger} if batch.trigger else {}
        line |= getattr(record, FIELDS, {})
        if record.exc_info and record.exc_info[1] is not None:
            line["error"] = repr(record.exc_info[1])
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()


def log_broker_as(log_format: str) -> None:
    """Select text or JSON for the log of this process, which is a broker."""
    root = logging.getLogger()
    if not root.handlers:
        logging.basicConfig(level=logging.INFO)
    formatter = JsonLines() if log_format == "json" else logging.Formatter(_TEXT)
    root.handlers[0].setFormatter(formatter)
    STEPS.setLevel(logging.INFO if log_format == "json" else logging.WARNING)


def log_connector_by(environ: Mapping[str, str] = os.environ) -> None:
    """Log the lines of this package as JSON on standard error if the variable requires it.

    A second call changes nothing.

    Raises Refused for an unknown format. The loggers of other packages are left alone.
    """
    log_format = environ.get(VARIABLE, "").strip().lower() or "text"
    if log_format not in LOG_FORMATS:
        raise Refused(f"variable {VARIABLE} is {log_format!r}, expected {' or '.join(LOG_FORMATS)}")
    if log_format == "text" or any(isinstance(handler.formatter, JsonLines) for handler in _PACKAGE.handlers):
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines())
    _PACKAGE.addHandler(handler)
    _PACKAGE.setLevel(logging.INFO)
    _PACKAGE.propagate = False  # otherwise the root logger would repeat each line as text
    STEPS.setLevel(logging.INFO)
