"""Options of the ledgers, the store and the credentials."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.connector.options.option import (
    EVERYWHERE,
    LONG_CHARS_MAX,
    READS,
    Option,
    names,
    one_of,
    option,
    pattern,
    reference,
    text,
)

PATH = Option("path", "", EVERYWHERE, "The ledger: the argument of `load()`, `start()` or `save()`.", text)
"""Option in which Spark passes the argument of `load()`, `start()` or `save()`. Its value is the value of `ledger`."""


@dataclass(frozen=True)
class AddressOptions:
    """Ledger, store and credentials."""

    ledger: str = option(text, EVERYWHERE, "The ledger, if `load()`, `start()` or `save()` has no argument.", absent="")
    ledgers: tuple[str, ...] = option(
        names, READS, "Several ledgers instead of one, separated by commas.", absent=(), chars_max=LONG_CHARS_MAX
    )
    ledgers_pattern: str | None = option(
        pattern,
        READS,
        "All ledgers whose whole short name matches this regular expression, instead of one ledger. The short name is "
        "`orders` in the namespace `public/default`, and `tenant/namespace/orders` elsewhere. If a matching ledger is "
        "created while a query runs, the query reads it from its beginning.",
    )
    store: str | None = option(
        text,
        EVERYWHERE,
        "A directory of this host, a bucket `s3://bucket/prefix`, or a broker's address: `grpc://host:port`, "
        "`grpc+tls://host:port` or `grpc+unix:///path`. The driver starts a broker if none runs. The default "
        "`./ledger-store` is refused on a Spark Connect server, in cluster mode, and below a directory of Spark.",
        otherwise="configure(store=…), else $LEDGER_STORE, else ./ledger-store",
    )
    broker: str = option(
        one_of("auto", "none"),
        READS,
        "`auto` uses the broker of the store. `none` reads a store in a bucket without a broker, on any host, in a "
        "batch or in a stream. Subscriptions and writes need a broker.",
        default="auto",
    )
    tls_trust_certs_file_path: str = option(
        text,
        EVERYWHERE,
        "For a store at `grpc+tls://`: a PEM file with the authority that signed the broker's certificate. Driver and "
        "tasks read this file, and those of the next two options, on their own host: at this path, or among "
        "`spark.files`.",
        absent="",
        otherwise="the system's authorities",
    )
    tls_certificate_file_path: str = option(text, EVERYWHERE, "A PEM file with the client's certificate.", absent="")
    tls_key_file_path: str = option(text, EVERYWHERE, "A PEM file with the key of the client's certificate.", absent="")
    auth_params: str = option(
        reference,
        EVERYWHERE,
        "The place of the bearer token: `file:/path` or `env:NAME`, never the token itself, because plans and logs "
        "show options. Each task gets a token of its own that expires.",
        absent="",
        shown=False,
    )
    subscription: str | None = option(
        text,
        ("stream read", "batch write"),
        "The name of a durable cursor in each ledger of the read. It keeps the query's position even if the "
        "checkpoint is lost, and retention keeps its unacknowledged rows. One query at a time may use a subscription.",
    )
