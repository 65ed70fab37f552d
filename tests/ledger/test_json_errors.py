"""Goal: JSON that is nested too deeply is refused by name in every text from outside.

Method: every decoder of a user's or a peer's text is given arrays 100,000 deep, and schemas that are valid and deep.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import flight

from pyspark_ledger.connector.decryption_keys import key_references
from pyspark_ledger.connector.options.positions import parse_positions
from pyspark_ledger.connector.session.commit_listener import committed
from pyspark_ledger.connector.session.metrics import ledgers_of
from pyspark_ledger.ledger.broker.live_settings import LiveSettings
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused
from pyspark_ledger.ledger.message.schema.avro import avro_type
from pyspark_ledger.ledger.message.schema.decoder import PayloadDecoder
from pyspark_ledger.ledger.message.schema.documents import (
    PayloadSchema,
    TopicSchemas,
    parse_schema_bytes,
    parse_schemas,
)
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.transport.errors import from_flight
from pyspark_ledger.offload.bucket.topic_metadata import parse_records
from pyspark_ledger.offload.table.commit_metadata import parse_publication
from pyspark_ledger.offload.table.commits import _commit_info

DEEP = "[" * 100_000 + "]" * 100_000


def deep_avro(levels: int) -> str:
    return '{"type": "array", "items": ' * levels + '"int"' + "}" * levels


def decoded(schema: PayloadSchema) -> None:
    PayloadDecoder(TopicSchemas({0: schema}), where="a schema")


def changed_settings(folder: Path) -> None:
    (folder / "settings.json").write_text(DEEP)
    LiveSettings.load(folder, Settings())


def settings_file(folder: Path) -> None:
    (folder / "broker.toml").write_text("metricsLedgersMax = " + DEEP)
    Settings.load(folder / "broker.toml")


REFUSED: dict[str, Callable[[Path], object]] = {
    "schemas of a topic": lambda _: parse_schemas(DEEP, "a schema"),
    "a registered schema": lambda _: parse_schema_bytes(('{"a": ' + DEEP + "}").encode(), "a schema"),
    "text of an Avro schema": lambda _: avro_type(DEEP, "a schema"),
    "types of an Avro schema": lambda _: avro_type(deep_avro(700), "a schema"),
    "columns of a schema": lambda _: decoded(PayloadSchema("JSON", deep_avro(900))),
    "sides of a key-value schema": lambda _: decoded(PayloadSchema("KEY_VALUE", '{"key": ' + DEEP + "}")),
    "a descriptor": lambda _: decoded(PayloadSchema("PROTOBUF_NATIVE", '{"fileDescriptorSet": ' + DEEP + "}")),
    "settings that were changed": changed_settings,
    "a file of settings": settings_file,
}


@pytest.mark.parametrize("given", REFUSED)
def test_deep_nesting_is_refused(tmp_path: Path, given: str) -> None:
    with pytest.raises(Refused, match=r"nested too deeply|settings\.json: Expected `object`") as refused:
        REFUSED[given](tmp_path)
    assert len(str(refused.value)) < 600


def test_deep_nesting_in_an_option_is_a_bad_value() -> None:
    for parse in (parse_positions, key_references):
        with pytest.raises(ValueError, match="JSON such as"):
            parse('{"orders": ' + DEEP + "}")


def test_deep_nesting_in_files_is_damage() -> None:
    with pytest.raises(Corrupt, match="a record is no JSON of internal statistics: nested too deeply"):
        parse_records(('{"strange": ' + DEEP + "}").encode(), "a record")
    with pytest.raises(Corrupt, match="version 3 is no JSON: nested too deeply"):
        _commit_info(('{"commitInfo": ' + DEEP + "}").encode(), "version 3")
    assert parse_publication('{"publication": ' + DEEP + "}") is None


def test_deep_nesting_in_progress_of_another_source_is_passed_over() -> None:
    source = {"latestOffset": DEEP, "endOffset": "no JSON"}
    assert committed(source) == []
    assert ledgers_of({"sources": [source]}) == []


def test_deeply_nested_error_of_a_peer_is_reported_as_unreadable() -> None:
    error = from_flight(flight.FlightServerError("failed", extra_info=('{"x": ' + DEEP + "}").encode()), "grpc://h:1")
    assert type(error) is LedgerError
    assert "cannot read" in str(error)
