"""Options of the ledgers, the store and the credentials."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.connector.options.option import (
    EVERYWHERE,
    LONG_CHARS_MAX,
    READS,
    Option,
    names,
    option,
    pattern,
    reference,
    text,
)

PATH = Option("path", "", EVERYWHERE, "The ledger: the argument of `load()`, `start()` or `save()`.", text)
"""Spark's own name for what it is given as an argument; read as `ledger`."""


@dataclass(frozen=True)
class AddressOptions:
    """Ledger, store and credentials."""

    ledger: str = option(text, EVERYWHERE, "The ledger, for a call that takes no name as its argument.", absent="")
    ledgers: tuple[str, ...] = option(
        names, READS, "Several ledgers instead of one, separated by commas.", absent=(), chars_max=LONG_CHARS_MAX
    )
    ledgers_pattern: str | None = option(
        pattern,
        READS,
        "All ledgers whose whole name matches this regular expression, instead of one. A matching ledger that is "
        "created while a query runs is read from its beginning.",
    )
    store: str | None = option(
        text,
        EVERYWHERE,
        "A directory of this host, or a broker's address: `grpc://host:port`, `grpc+tls://host:port` or "
        "`grpc+unix:///path`. For a directory without a running broker, a broker is started.",
        otherwise="$LEDGER_STORE, else ./ledger-store",
    )
    tls_trust_certs_file_path: str = option(
        text,
        EVERYWHERE,
        "For a store at `grpc+tls://`: a PEM file with the authority that signed the broker's certificate. The "
        "driver and every task read this file and those of the next two options on their own host. The file is at "
        "this path, or among the files that Spark ships.",
        absent="",
        otherwise="the system's authorities",
    )
    tls_certificate_file_path: str = option(text, EVERYWHERE, "A PEM file with the client's certificate.", absent="")
    tls_key_file_path: str = option(text, EVERYWHERE, "A PEM file with the key of the client's certificate.", absent="")
    auth_params: str = option(
        reference,
        EVERYWHERE,
        "The place of the bearer token: `file:/path` or `env:NAME`, never the token itself, because plans and logs "
        "show options. The driver reads the token. Each task is given a short-lived token of its own.",
        absent="",
        shown=False,
    )
    subscription: str | None = option(
        text,
        ("stream read", "batch write"),
        "A durable cursor of the ledger to read with. The broker keeps its position when a checkpoint is lost, and "
        "retains what it has not acknowledged. One running query at a time may use a subscription.",
    )
