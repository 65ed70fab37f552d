"""Goal: a kill of the broker during an upload loses no entry and leaves no object, and the offload is repeated.

Method: a request of an offload to a real S3 is delayed, before or after it arrives, and the broker gets SIGKILL. The
broker that the supervisor starts repeats the offload.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.position import PositionRange
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from pyspark_ledger.offload.bucket.fetch import read_part
from pyspark_ledger.offload.bucket.listing import read_catalogue
from pyspark_ledger.offload.bucket.topic_log import BucketLog
from streaming_examples.s3_server import S3Server
from tests.rigs.fault_proxy import FaultProxy

if TYPE_CHECKING:
    from tests.rigs.victim import Victim

pytestmark = pytest.mark.fault

MIB = 1024 * 1024
# Requests of an offload in their order: method, and a part of the path.
REQUESTS = {
    "begin": ("POST", "uploads"),
    "part": ("PUT", "partNumber=2"),
    "complete": ("POST", "uploadId"),
    "index": ("PUT", "-index"),
}


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_broker_killed_while_it_uploads(
    victim: Victim,
    proxy: FaultProxy,
    s3_server: S3Server,
    bucket: str,
    make_entry: Callable[..., bytes],
    read_log: Callable[..., list[bytes]],
    request_: str,
    when: str,
) -> None:
    client = victim.client()
    store = LedgerStore(client)
    client.ask(CreateLedger("log", block_bytes=5 * MIB))
    payloads = [bytes([number]) * MIB for number in range(11)]
    with client.producer("log") as producer:
        for payload in payloads:
            producer.append(make_entry(payload))
    store.offload_to(bucket, endpoint=proxy.endpoint)
    log = store.ledger("log")
    proxy.on(*REQUESTS[request_], when)
    offload = threading.Thread(target=quietly, args=(lambda: log.offload(seal=True, wait=False),))
    offload.start()
    assert proxy.reached.wait(60), "the offload never got there"
    victim.kill_broker()
    proxy.released.set()
    proxy.heal()
    offload.join(60)

    assert read_log(client, "log") == payloads
    done = log.offload()
    assert (done.state, done.offloaded) == ("done", 1)
    client.ask(OffloadPrefix("log", sweep=True))
    objects = open_object_store(bucket, s3_server.options)
    names = [found.key.partition("-ledger-")[2] for found in objects.objects()]
    assert names == ["0", "0-entries", "0-index"], "what an attempt left is swept"
    assert not list(objects.uploads())
    log.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
    assert log.trim().local == [0]
    assert read_log(client, "log") == payloads
    (topic,) = read_catalogue(objects).find("log")
    whole = BucketLog(topic)
    parts = whole.parts(PositionRange(whole.start, whole.end), 64 * MIB)
    assert [bytes(entry.payload) for part in parts for _, entry in read_part(objects, part)] == payloads


def quietly(call: Callable[[], object]) -> None:
    with suppress(LedgerError):
        call()
