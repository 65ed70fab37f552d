"""Whether a store can be used from here: the broker at an address, or the directory and its disk.

Rule: nothing is started or made. A directory without a broker is in order, because the driver starts one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from connector.finding import Finding
from ledger.broker.credentials import Credentials
from ledger.broker.embedded import connect_store
from ledger.errors import LedgerError
from ledger.store_location import store_location

_PREFIX = "LEDGER_"


def check_store(store: str, environ: Mapping[str, str]) -> Iterator[Finding]:
    """The store behind a path or an address; credentials are those of the command line's variables."""
    location = store_location(store)
    if "://" in location:
        yield _check_address(location, environ)
        return
    path = Path(location)
    if not (path / "metadata.sqlite").exists():
        yield Finding("store", "ok", f"{path} is no store yet: the first write makes it")
        return
    try:
        client = connect_store(path, start=False, deadline_ms=2_000)
    except LedgerError as error:
        yield Finding("broker", "ok", f"none runs for {path}, a driver on this host starts one ({error.message})")
        return
    yield Finding("broker", "ok", f"store {client.store_id} is served at {client.address}")
    client.close()


def _check_address(location: str, environ: Mapping[str, str]) -> Finding:
    parts = ("TLS_TRUST_CERTS_FILE_PATH", "TLS_CERTIFICATE_FILE_PATH", "TLS_KEY_FILE_PATH", "AUTH_PARAMS")
    try:
        given = Credentials(*(environ.get(_PREFIX + part, "") for part in parts))
        client = connect_store(location, deadline_ms=3_000, credentials=given)
    except LedgerError as error:
        do = error.hint or "See that `ledger serve` runs there, and that no firewall is in between"
        return Finding("broker", "problem", f"{location}: {error.message}", do)
    mapped = "on this host: readers map its files" if client.same_host_token() else "elsewhere: readers are sent blocks"
    client.close()
    return Finding("broker", "ok", f"store {client.store_id} answers at {location}, {mapped}")
