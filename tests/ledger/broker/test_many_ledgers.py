"""Goal: a thousand ledgers, each with a producer and a reader, and a broker that asks for the files this takes.
Method: a real broker, started with fewer files than it needs."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pyspark_ledger.ledger.protocol.actions import CreateLedger

if TYPE_CHECKING:
    from pyspark_ledger.ledger.client.client import Client
    from tests.rigs.broker import BrokerRig

_FILES_OF_A_LEDGER = 4  # three of its own, and the connection of its producer


def limit_of(pid: int) -> tuple[str, str]:
    line = next(line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if line.startswith("Max open"))
    soft, hard = line.split()[3:5]
    return soft, hard


@contextmanager
def few_files() -> Iterator[int]:
    """Let children inherit a soft limit that is far too low, and yield it. This process may have many open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(os.listdir("/proc/self/fd")) + 100  # noqa: PTH208 — names only
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        yield few
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def append_and_read(
    client: Client, ledgers: int, make_entry: Callable[..., bytes], read_log: Callable[..., list[tuple[str, bytes]]]
) -> None:
    """Three entries to each ledger, in flight to all at once; each reader gets its own ledger's."""
    names = [f"ledger-{number}" for number in range(ledgers)]
    for name in names:
        client.ask(CreateLedger(name))
    producers = [client.producer(name) for name in names]
    for turn in range(3):
        futures = [
            producer.append(make_entry(b"%d of %s" % (turn, name.encode()), turn))
            for producer, name in zip(producers, names, strict=True)
        ]
        for future in futures:
            future.result(120)
    for name in names:
        assert [payload for _, payload in read_log(client, name)] == [
            b"%d of %s" % (i, name.encode()) for i in range(3)
        ]
    for producer in producers:
        producer.close()


@pytest.mark.thorough
def test_a_broker_takes_all_the_files_it_may_have(
    rig: BrokerRig,
    make_entry: Callable[..., bytes],
    read_log: Callable[..., list[tuple[str, bytes]]],
) -> None:
    with few_files() as few:
        broker = rig.start("--create")
    soft, hard = limit_of(broker.pid)
    assert soft == hard
    if int(hard) < 1000:
        pytest.skip(f"only {hard} files may be open here")
    append_and_read(rig.client(), few // 3, make_entry, read_log)
    assert len(os.listdir(f"/proc/{broker.pid}/fd")) > few  # noqa: PTH208 — names only
    assert "the limit of open files is" in rig.log()


@pytest.mark.slow
def test_a_thousand_ledgers_with_a_producer_and_a_reader_each(
    rig: BrokerRig, make_entry: Callable[..., bytes], read_log: Callable[..., list[tuple[str, bytes]]]
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 1000 * _FILES_OF_A_LEDGER + 500:
        pytest.skip(f"only {hard} files may be open here")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        rig.start("--create")
        append_and_read(rig.client(), 1000, make_entry, read_log)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
