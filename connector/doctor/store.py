"""Checks of a store: the broker at an address or of a bucket, or the directory and its disk.

Rule: the checks start and create nothing. A directory without a broker is no problem, because the driver starts one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from pyspark_ledger.connector.doctor.diagnosis import Diagnosis
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.client.connect import connect_store
from pyspark_ledger.ledger.client.credentials import Credentials
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.location import bucket_of, location_text, store_location
from pyspark_ledger.ledger.protocol.actions import AskHealth

_PREFIX = "LEDGER_"


def check_store(store: str, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    """Check the store at a path or an address. The credentials come from the environment variables of the command."""
    location = store_location(store)
    if "://" in location:
        yield from _check_address(location, environ)
        return
    path = Path(location)
    if not (path / "metadata.sqlite").exists() and not bucket_of(path):
        yield Diagnosis("store", "ok", f"{path} is no store yet: the first write creates it")
        return
    try:
        client = connect_store(path, start=False, deadline_ms=2_000)
    except LedgerError as error:
        yield Diagnosis(
            "broker",
            "ok",
            f"no broker runs for {location_text(path)}; a driver on this host starts it ({error.message})",
        )
        return
    yield Diagnosis("broker", "ok", f"store {client.store_id} is served at {client.address}")
    yield from _health(client)
    client.close()


def _check_address(location: str, environ: Mapping[str, str]) -> Iterator[Diagnosis]:
    parts = ("TLS_TRUST_CERTS_FILE_PATH", "TLS_CERTIFICATE_FILE_PATH", "TLS_KEY_FILE_PATH", "AUTH_PARAMS")
    try:
        ca, certificate, key, token = (environ.get(_PREFIX + part, "") for part in parts)
        client = connect_store(location, deadline_ms=3_000, credentials=Credentials(ca, certificate, key, token))
    except LedgerError as error:
        do = error.hint or "Check that `ledger serve` runs there, and that no firewall blocks the connection"
        yield Diagnosis("broker", "problem", f"{location}: {error.message}", do)
        return
    mapped = (
        "on this host: readers map its files"
        if client.same_host_token()
        else "on another host: the broker sends blocks to readers"
    )
    yield Diagnosis("broker", "ok", f"store {client.store_id} answers at {location}, {mapped}")
    yield from _health(client)
    client.close()


def _health(client: Client) -> Iterator[Diagnosis]:
    """Check a broker's health: ledgers that are closed for appends, and errors in the broker's log."""
    try:
        health = client.ask(AskHealth())
    except LedgerError as error:
        yield Diagnosis("broker", "warning", f"it does not report its health: {error.message}", error.hint)
        return
    for why in health.given_up.values():
        yield Diagnosis(
            "broker", "problem", why, "The appends that failed may be in the log: check before you repeat them"
        )
    if health.error_count:
        found = f"{health.error_count} errors since its start, the last: {health.errors[-1]}"
        yield Diagnosis("broker", "warning", found, "Read broker.log in the store")
