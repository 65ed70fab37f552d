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

PATH = Option("path", "", EVERYWHERE, "The ledger: what `load()`, `start()` and `save()` are given.", text)
"""Spark's own name for what it is given as an argument; read as `ledger`."""


@dataclass(frozen=True)
class AddressOptions:
    """Ledger, store and credentials."""

    ledger: str = option(text, EVERYWHERE, "The ledger, where there is no argument to name it.", absent="")
    ledgers: tuple[str, ...] = option(
        names, READS, "Several ledgers, with commas between them, instead of one.", absent=(), chars_max=LONG_CHARS_MAX
    )
    ledgers_pattern: str | None = option(
        pattern,
        READS,
        "All ledgers whose whole name matches this regular expression, instead of one; also those that come while a "
        "query runs, from their beginning.",
    )
    store: str | None = option(
        text,
        EVERYWHERE,
        "A directory of this host, whose broker is started when none runs, or a broker's address: "
        "`grpc://host:port`, `grpc+tls://host:port`, `grpc+unix:///path`.",
        otherwise="$LEDGER_STORE, else ./ledger-store",
    )
    tls_trust_certs_file_path: str = option(
        text,
        EVERYWHERE,
        "For a store at `grpc+tls://`: the authority that the broker's certificate is checked with, PEM. This file and "
        "those of the next two options are read by the driver and by every task, each on its own host: at this path, "
        "or among the files that Spark ships.",
        absent="",
        otherwise="the system's authorities",
    )
    tls_certificate_file_path: str = option(text, EVERYWHERE, "The certificate to show to the broker, PEM.", absent="")
    tls_key_file_path: str = option(text, EVERYWHERE, "The key of that certificate, PEM.", absent="")
    auth_params: str = option(
        reference,
        EVERYWHERE,
        "Where the bearer token is: `file:/path` or `env:NAME`. Never the token itself: plans and logs show options. "
        "It is read by the driver; each task is given one of its own, which runs out.",
        absent="",
        shown=False,
    )
    subscription: str | None = option(
        text,
        ("stream read", "batch write"),
        "A durable cursor of the ledger to read with: it keeps its place over lost checkpoints, and holds back "
        "whatever it has not acknowledged. One live query at a time.",
    )
