"""Messages per second of a Python loop of single `send`s, against the same loop with `confluent-kafka`.

A message has a value of 120 bytes and a key. Both sides wait until every message is acknowledged, and check each
result. Ours returns a future for each message, Kafka's client calls a delivery callback. Both producers have their
defaults. A batch of ours is acknowledged when it is synced. Kafka is measured with `flush.messages=1`, which syncs each
batch of its producers, and with its defaults, which never sync. Target: at least 1.0 against a Kafka that syncs. The
figure depends on the Python interpreter, and on the number of cores that the brokers share with it.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from confluent_kafka import KafkaError, Message, Producer

from benchmarks.harness import Loop, compare
from benchmarks.kafka_broker import kafka
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.protocol.actions import Empty

MESSAGES = 200_000
VALUE = os.urandom(120)
KEYS = [f"user {number}" for number in range(1000)]
_SECONDS = 60


def ours(store: LedgerStore) -> Loop:
    """Send to a ledger of messages, and take the result of each future."""
    ledger = store.ledger("sent")

    def loop() -> None:
        with ledger.producer() as producer:
            send = producer.send
            sent = [send(VALUE, key=KEYS[number % 1000]) for number in range(MESSAGES)]
        if any(future.exception() is not None for future in sent):
            message = "a message was not acknowledged"
            raise RuntimeError(message)

    return loop


def theirs(address: str, topic: str) -> Loop:
    """Produce to a topic, and check the result of each message in a callback."""

    def loop() -> None:
        delivered = 0

        def check(error: KafkaError | None, _: Message) -> None:
            nonlocal delivered
            delivered += error is None

        producer = Producer({"bootstrap.servers": address})
        for number in range(MESSAGES):
            while True:
                try:
                    producer.produce(topic, VALUE, key=KEYS[number % 1000], on_delivery=check)
                    break
                except BufferError:  # the queue is full
                    producer.poll(0.01)
            if not number % 1000:
                producer.poll(0)
        producer.flush(_SECONDS)
        if delivered != MESSAGES:
            message = f"{delivered} messages of {MESSAGES} were acknowledged"
            raise RuntimeError(message)

    return loop


def main() -> None:
    """Print both comparisons. The second last line is the ratio against a Kafka that syncs."""
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as text:
        folder = Path(text)
        store = connect(folder / "store")
        try:
            with kafka(folder / "kafka") as broker:
                broker.create("synced", {"flush.messages": "1"})
                broker.create("nosync")
                against = compare("send_one_synced", ours(store), theirs(broker.address, "synced"))
                default = compare("send_one_default", ours(store), theirs(broker.address, "nosync"))
        finally:
            store.client.call("shutdown", Empty())
    print(f"ratio send_one {against.ratio:.3f}")
    print(f"ratio send_one_nosync {default.ratio:.3f}")


if __name__ == "__main__":
    main()
