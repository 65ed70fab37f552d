"""Settings of the broker as a service: limits of concurrent work, lifetime, and listening address."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import AT_ONCE, MIB, TEN_YEARS_SECONDS, switch, text, whole

LOG_FORMATS = ("text", "json")


@dataclass(frozen=True)
class ServiceSettings:
    """The broker: limits, lifetime, and listening address."""

    maxMessagePublishBufferSizeInMB: int = whole(
        512,
        "MiB",
        1,
        1024 * 1024,
        "Maximum bytes of all producers together that wait for the disk. At the limit the broker stops reading from "
        "each producer with waiting bytes.",
        AT_ONCE,
        user="operators of a host with little memory, or of many producers",
    )
    maxMessageSize: int = whole(
        128 * MIB,
        "bytes",
        5 * MIB,
        2 * 1024 * MIB,
        "Maximum size of one request of a producer, and so of one entry.",
        AT_ONCE,
        user="operators of a host with little memory, or writers of larger entries",
    )
    maxConcurrentRequests: int = whole(
        8_192,
        "calls",
        1,
        1024 * 1024,
        "Maximum number of calls, streams and readers that are served at once. Each uses a thread.",
        AT_ONCE,
        user="operators of a small host, or of thousands of clients",
    )
    brokerIdleTimeoutSeconds: int = whole(
        300,
        "seconds",
        0,
        TEN_YEARS_SECONDS,
        "A private broker exits after this time without a call or a lease. 0: it does not exit.",
        AT_ONCE,
        user="users of notebooks with long pauses",
    )
    brokerShutdownTimeoutMs: int = whole(
        60_000,
        "milliseconds",
        0,
        3_600_000,
        "Maximum time in which a stopping broker completes queued appends and seals segments. Later appends are not "
        "acknowledged.",
        AT_ONCE,
        user="operators whose scheduler kills earlier or later",
    )
    bindAddress: str = text(
        "address",
        "Address at which the broker listens instead of its private Unix socket: grpc://127.0.0.1:PORT or "
        "grpc+tls://HOST:PORT. An address that other hosts can reach needs tlsCertificateFilePath, tlsKeyFilePath, "
        "tlsTrustCertsFilePath and authenticationTokens. With them the broker also listens at its private socket.",
        risk="opens the store to other users of the host, or to other hosts",
        user="operators of clients on other hosts",
    )
    webServiceAddress: str = text(
        "address",
        "Address of the HTTP service with metrics, health and status page: http://127.0.0.1:PORT or "
        "https://HOST:PORT. An address that other hosts can reach needs https, a certificate and tokens.",
        risk="shows names and figures of the store to other users of the host, or to other hosts",
        user="operators with Prometheus or health checks",
    )
    webAdmin: int = switch(
        0,
        "1: the web service also takes Pulsar's admin requests for offloads, PUT and GET of "
        "/admin/v2/persistent/TENANT/NAMESPACE/TOPIC/offload. It needs authenticationTokens.",
        user="operators with scripts for Pulsar's admin API",
    )
    metricsLedgersMax: int = whole(
        1_000,
        "ledgers",
        0,
        100_000,
        "Maximum number of ledgers with their own metrics. The metrics of all other ledgers are summed.",
        AT_ONCE,
        user="operators of more than 1,000 ledgers",
    )
    logFormat: str = text(
        "one of " + ", ".join(LOG_FORMATS),
        "Format of broker.log. `json` is one JSON object a line, and adds a line for each step of a batch.",
        AT_ONCE,
        default="text",
        choices=LOG_FORMATS,
        user="operators with a log collector",
    )
    tlsCertificateFilePath: str = text(
        "path",
        "PEM file with the certificate of the broker and its chain.",
        risk="shows clients another identity of the broker",
        user="operators of clients on other hosts",
    )
    tlsKeyFilePath: str = text(
        "path",
        "PEM file with the key of the certificate, with mode 600.",
        risk="uses another key, which others may know",
        user="operators of clients on other hosts",
    )
    tlsTrustCertsFilePath: str = text(
        "path",
        "PEM file with the authority that signs the clients' certificates. The broker refuses a client without such a "
        "certificate.",
        risk="admits clients of another authority",
        user="operators of clients on other hosts",
    )
    authenticationTokens: str = text(
        "reference",
        "Reference to the bearer tokens of clients: file:/path (one token a line, mode 600) or env:NAME. With several "
        "tokens you can replace a token while clients run. Do not set a token itself.",
        risk="admits clients with other tokens",
        user="operators of clients on other hosts, or of other users",
    )
