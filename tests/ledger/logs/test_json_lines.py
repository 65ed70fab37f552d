"""Goal: each line is one JSON object with the batch's id, and text is the default. Method: loggers on a stream."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.logs.batch import BatchId, in_batch
from pyspark_ledger.ledger.logs.json_lines import VARIABLE, JsonLines, log_broker_as, log_connector_by
from pyspark_ledger.ledger.logs.steps import STEPS, log_step, timed_step


@pytest.fixture
def out() -> Iterator[io.StringIO]:
    """The lines of this package as JSON; the loggers are as before after the test."""
    package, root = logging.getLogger("pyspark_ledger"), logging.getLogger()
    before = package.handlers[:], package.level, package.propagate, STEPS.level, root.handlers[:], root.level
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines())
    package.handlers, package.propagate = [handler], False
    package.setLevel(logging.INFO)
    STEPS.setLevel(logging.INFO)
    yield stream
    package.handlers, package.level, package.propagate, STEPS.level, root.handlers, root.level = before
    package.manager._clear_cache()


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_line_has_time_level_process_and_batch(out: io.StringIO) -> None:
    log = logging.getLogger("pyspark_ledger.x")
    log.warning('a "quoted"\nmessage of %s', "orders")
    with in_batch(BatchId("b", "q:1")):
        log.info("in a batch", extra={"secret": "not shown"})
    first, second = lines(out)
    assert first["message"] == 'a "quoted"\nmessage of orders'
    assert (first["level"], first["logger"]) == ("WARNING", "pyspark_ledger.x")
    assert str(first["time"]).endswith("Z")
    assert set(first) == {"time", "level", "logger", "pid", "thread", "message"}
    assert (second["batch"], second["trigger"]) == ("b", "q:1")
    assert "not shown" not in out.getvalue()


def test_an_error_is_in_its_line(out: io.StringIO) -> None:
    try:
        int("broken")
    except ValueError:
        logging.getLogger("pyspark_ledger.x").exception("failed")
    (line,) = lines(out)
    assert "broken" in str(line["error"])
    assert "test_json_lines.py" in str(line["traceback"])


def test_steps_have_figures_and_seconds_in_a_batch_only(out: io.StringIO) -> None:
    log_step("sync", rows=1)
    with timed_step("plan"):
        pass
    assert lines(out) == []
    with in_batch(BatchId("b")):
        with timed_step("stage", ledger="", task=2) as figures:
            figures["rows"] = 7
        with pytest.raises(KeyError), timed_step("commit"):
            raise KeyError("x")
    staged, failed = lines(out)
    assert (staged["step"], staged["task"], staged["rows"], "ledger" in staged) == ("stage", 2, 7, False)
    assert float(str(staged["seconds"])) >= 0
    assert (failed["step"], failed["error"]) == ("commit", "KeyError")


def test_text_has_no_steps(out: io.StringIO) -> None:
    root = logging.getLogger()
    root.handlers = [logging.StreamHandler(out)]
    log_broker_as("text")
    assert not STEPS.isEnabledFor(logging.INFO)
    assert not isinstance(root.handlers[0].formatter, JsonLines)
    log_broker_as("json")
    assert STEPS.isEnabledFor(logging.INFO)
    assert isinstance(root.handlers[0].formatter, JsonLines)


def test_the_variable_switches_the_connector_once(out: io.StringIO) -> None:
    package = logging.getLogger("pyspark_ledger")
    package.handlers = []
    log_connector_by({})
    assert package.handlers == []
    with pytest.raises(Refused, match="LEDGER_LOG_FORMAT is 'yaml', expected text or json"):
        log_connector_by({VARIABLE: "yaml"})
    for _ in range(2):
        log_connector_by({VARIABLE: "JSON"})
    assert [type(handler.formatter) for handler in package.handlers] == [JsonLines]
    assert out.getvalue() == ""
