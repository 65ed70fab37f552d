"""Goal: after an error a process does not use the bucket for a while. Method: one switch, a clock of the test."""

from __future__ import annotations

import logging

import pytest

from pyspark_ledger.connector.bucket_switch import OFF_MS, BucketSwitch
from pyspark_ledger.ledger.errors import Unavailable


def refused() -> None:
    raise Unavailable("no route to the bucket")


def test_the_bucket_is_tried_again_after_a_while() -> None:
    now = [1_000]
    switch = BucketSwitch("the broker takes over", lambda: now[0])
    assert switch.is_on()
    switch.turn_off(Unavailable("no route to the bucket"))
    now[0] += OFF_MS - 1
    assert not switch.is_on()
    now[0] += 1
    assert switch.is_on()


def test_one_trial_counts_until_the_next_error() -> None:
    trials: list[str] = []
    switch = BucketSwitch("the broker takes over")
    assert switch.try_once("a", lambda: trials.append("a"))
    assert switch.try_once("a", lambda: trials.append("again"))
    assert switch.try_once("b", lambda: trials.append("b"))
    assert trials == ["a", "b"]
    assert not switch.try_once("c", refused)
    assert not switch.is_on()
    assert switch.try_once("a", lambda: trials.append("after the error"))
    assert switch.is_on()
    assert trials == ["a", "b", "after the error"]


def test_only_the_first_error_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    switch = BucketSwitch("the broker takes over")
    with caplog.at_level(logging.INFO):
        switch.try_once("a", refused)
        switch.try_once("a", refused)
    found = [(record.levelno, record.getMessage()) for record in caplog.records]
    text = "the broker takes over: [LEDGER_UNAVAILABLE] no route to the bucket"
    assert found == [(logging.WARNING, text), (logging.INFO, text)]
