"""Goal: a reader of a bucket gets the payloads' columns without a registry. Method: segments offloaded and read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.protocol.actions import StopBroker
from pyspark_ledger.offload.bucket.listing import read_catalogue
from tests.rigs.scan import read_bucket as rows

FIRST = {"type": "record", "name": "Click", "fields": [{"name": "user", "type": "string"}]}
SECOND = {**FIRST, "fields": [*FIRST["fields"], {"name": "at", "type": ["null", "long"], "default": None}]}


def schemas(*versions: dict[str, object]) -> str:
    return json.dumps([{"type": "JSON", "schema": version} for version in versions])


@pytest.mark.parametrize("partitions", [0, 2])
@pytest.mark.thorough
def test_registered_schemas_go_with_a_ledger_and_make_its_columns(
    store_path: Path, tmp_path: Path, partitions: int
) -> None:
    store = connect(store_path)
    try:
        store.offload_to(str(tmp_path / "bucket"))
        clicks = store.create_partitioned("clicks", partitions) if partitions else store.ledger("clicks")
        parts = clicks.partitions() if partitions else [clicks]
        for number, known in enumerate(((), (FIRST,), (FIRST, SECOND))):
            if known:
                for part in parts:
                    part.register_payload_schemas(schemas(*known))
            with clicks.producer() as producer:
                for row in range(4):
                    producer.send(json.dumps({"user": f"u{row}", "at": number}).encode(), key=f"k{row}")
            for part in parts:
                part.offload(seal=True)
    finally:
        store.client.ask(StopBroker())
    bucket = tmp_path / "bucket"
    found = rows(bucket, "clicks")
    assert len(found) == 12
    assert sorted((row["user"], row["at"]) for row in found) == sorted(
        (f"u{row}", number) for number in range(3) for row in range(4)
    )
    assert set(rows(bucket, "clicks", payloadSchema="BYTES")[0]) == {"value"}
    for topic in read_catalogue(open_object_store(bucket)).find("clicks"):
        counts = [one.index.payload_schemas.count("version") for one in topic.segments]
        assert counts[-1] == 2
        assert counts[0] == 0
