"""Messages of an asyncio program to a ledger, against aiokafka to a real Kafka that syncs each batch.

Both sides send `MESSAGES` messages of 120 bytes from 1,000 tasks, each of which awaits its message before it sends the
next. A message of the ledger is durable when it is awaited. Kafka's topic has `flush.messages=1`, so that its broker
syncs each batch, too, and aiokafka waits for `acks=all`. Both run in this process, in asyncio's event loop. The result
is the ratio of messages per second.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from itertools import count
from pathlib import Path

from aiokafka import AIOKafkaProducer

from benchmarks.harness import compare
from benchmarks.kafka_broker import kafka
from benchmarks.raw_disk import bench_dir
from pyspark_ledger import aio
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import StopBroker

MESSAGES = int(os.environ.get("AIO_MESSAGES", "50000"))
TASKS = 1000
VALUE = bytes(range(120))


async def send_all(send: Callable[[bytes], Awaitable[object]]) -> float:
    """Send all messages from the tasks. Return the seconds."""

    async def worker() -> None:
        for _ in range(MESSAGES // TASKS):
            await send(VALUE)

    begun = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(TASKS)))
    return time.perf_counter() - begun


async def to_ledger(path: Path, name: str) -> float:
    """Return the seconds of the project."""
    async with aio.connect(path) as store, store.create(name) as ledger, ledger.producer() as producer:
        await producer.send(VALUE)
        return await send_all(producer.send)


async def to_kafka(address: str, topic: str) -> float:
    """Return the seconds of aiokafka."""
    async with AIOKafkaProducer(bootstrap_servers=address, acks="all", linger_ms=1) as producer:
        await producer.send_and_wait(topic, VALUE)
        return await send_all(lambda value: producer.send_and_wait(topic, value))


def main() -> None:
    """Print the ratio."""
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as text:
        folder, serial = Path(text), count()
        store = connect(folder / "store")
        with kafka(folder / "kafka") as broker:

            def base() -> float:
                topic = f"events-{next(serial)}"
                broker.create(topic, {"flush.messages": "1"})
                return asyncio.run(to_kafka(broker.address, topic))

            compare("aio_produce", lambda: asyncio.run(to_ledger(folder / "store", f"events-{next(serial)}")), base)
        store.client.ask(StopBroker())


if __name__ == "__main__":
    main()
