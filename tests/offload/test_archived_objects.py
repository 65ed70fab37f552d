"""Goal: a client fails at once at an object in an archive tier. Method: a proxy before a real S3 says so."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pyspark_ledger.connector.default_source import DefaultSource
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.errors import Archived, Unavailable, error_for
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ends import WireError
from pyspark_ledger.ledger.protocol.ledgers import OffloadPrefix
from streaming_examples.s3_server import S3Server
from tests.rigs.driven_broker import DrivenBroker
from tests.rigs.fault_proxy import FaultProxy

PROVIDER = "streaming_examples.s3_server:credentials"


@pytest.fixture
def notes(
    tmp_path: Path, bucket: str, proxy: FaultProxy, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Ledger]:
    """Ledger whose only rows are in the bucket."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    names = {"Bucket": bucket, "ServiceEndpoint": proxy.endpoint, "CredentialProvider": PROVIDER}
    broker = DrivenBroker(tmp_path, {f"managedLedgerOffload{name}": text for name, text in names.items()}, monkeypatch)
    api = connect(broker.record.address)
    broker.store.create_ledger(CreateLedger("notes"))
    ledger = api.ledger("notes")
    ledger.append([{"id": 1}])
    ledger.seal()
    broker.store.offloads.offload(OffloadPrefix("notes"))
    broker.store.offloads.round()
    broker.pass_ms(5 * 3_600_000)
    broker.store.ledger("notes").trim()
    yield ledger
    api.client.close()
    broker.close()


def by_spark(ledger: Ledger, **options: str) -> list[Any]:
    source = DefaultSource({"store": ledger.client.address, "path": "notes", **options})
    reader = source.reader(source.schema())
    return [batch for part in reader.partitions() for batch in reader.read(part)]


@pytest.mark.parametrize(
    "read",
    [
        Ledger.read,
        lambda ledger: list(ledger.cursor("c", start=EARLIEST).read()),
        lambda ledger: by_spark(ledger, directReads="off"),
        lambda ledger: by_spark(ledger, credentialProvider=PROVIDER),
    ],
    ids=["python", "cursor", "spark", "direct"],
)
def test_reader_of_an_archived_object_fails_at_once(
    notes: Ledger, proxy: FaultProxy, read: Callable[[Ledger], object]
) -> None:
    proxy.on("GET", "", "403 InvalidObjectState GLACIER", times=1000)
    with pytest.raises(Archived, match=r"the object is in the archive tier GLACIER .*Restore it, for example"):
        read(notes)
    assert proxy.met <= 3, "the client does not repeat the call"
    proxy.heal()
    assert notes.read().num_rows == 1


def test_archived_keeps_its_class_on_its_way_to_a_client() -> None:
    error = Archived("m", hint="h")
    sent = msgspec.json.encode(WireError.of(error))
    found = msgspec.json.decode(sent, type=WireError).error()
    for received in (found, pickle.loads(pickle.dumps(error))):  # noqa: S301 — our own bytes
        assert type(received) is Archived
        assert (received.message, received.hint) == ("m", "h")
    # An earlier client knows code, message and hint only.
    assert type(error_for(error.code, "m", "h")) is Unavailable
    assert type(error_for(error.code, "m", "h", "of a later version")) is Unavailable
    assert (
        msgspec.json.decode(b'{"code":"LEDGER_CORRUPT","message":"m"}', type=WireError).error().code == "LEDGER_CORRUPT"
    )
