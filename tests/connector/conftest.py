"""Fixtures of a store whose broker ends with the test (`tests.rigs.broker_thread`), and the end of readers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from pyspark_ledger.connector.read.ledger.subscription import Heartbeat
from tests.rigs.broker_thread import api, store
from tests.rigs.stream import orders

__all__ = ["api", "orders", "store"]


@pytest.fixture(autouse=True)
def left_readers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop readers that a test left behind, as the end of a process does. Their heartbeats would start brokers."""
    started, own = list[Heartbeat](), Heartbeat.__init__

    def recorded(heartbeat: Heartbeat, *args: Any, **named: Any) -> None:
        started.append(heartbeat)
        own(heartbeat, *args, **named)

    monkeypatch.setattr(Heartbeat, "__init__", recorded)
    yield
    for heartbeat in started:
        heartbeat.stop()
