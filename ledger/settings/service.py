"""Settings of the broker as a service: limits of concurrent work, lifetime, and listening address."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import AT_ONCE, MIB, TEN_YEARS_SECONDS, text, whole

LOG_FORMATS = ("text", "json")


@dataclass(frozen=True)
class ServiceSettings:
    """The broker: limits, lifetime, and listening address."""

    maxInFlightAppendBytes: int = whole(
        64 * MIB,
        "bytes",
        MIB,
        16 * 1024 * MIB,
        "Maximum bytes of one producer that wait for the disk. At the limit the broker stops reading from the "
        "producer.",
        AT_ONCE,
    )
    maxMessagePublishBufferSizeInMB: int = whole(
        512,
        "MiB",
        1,
        1024 * 1024,
        "Maximum bytes of all producers together that wait for the disk. At the limit the broker stops reading from "
        "every producer with waiting bytes. A producer without waiting bytes can always send one entry.",
        AT_ONCE,
    )
    maxMessageSize: int = whole(
        128 * MIB,
        "bytes",
        5 * MIB,
        2 * 1024 * MIB,
        "Maximum size of one request of a producer. A request is one entry, or several small entries. The limit "
        "therefore also applies to one entry, independent of the block size.",
        AT_ONCE,
    )
    maxRequestBodyBytes: int = whole(
        16 * MIB,
        "bytes",
        64 * 1024,
        1024 * MIB,
        "Maximum size of any other request. The largest requests have a schema, or list the staged parts of a batch.",
        AT_ONCE,
    )
    maxWaitMillis: int = whole(
        60_000,
        "milliseconds",
        0,
        100_000,
        "Maximum time for which a call of a reader waits for new entries. After that the reader calls again. The "
        "value must be below two minutes, the time-out of a client's call.",
        AT_ONCE,
    )
    maxConcurrentRequests: int = whole(
        8_192,
        "calls",
        1,
        1024 * 1024,
        "Maximum number of calls and streams that are served at once. Each uses a thread.",
        AT_ONCE,
    )
    maxConcurrentReaders: int = whole(
        2_048,
        "readers",
        1,
        1024 * 1024,
        "Maximum number of readers to which the broker sends blocks at once. Readers on the broker's host map files, "
        "and do not count.",
        AT_ONCE,
    )
    maxStreamsPerClient: int = whole(
        1_024,
        "streams",
        1,
        1024 * 1024,
        "Maximum number of open streams of one client, which is the host of its address: streams that append, stage or "
        "acknowledge. Streams over the broker's private socket do not count.",
        AT_ONCE,
    )
    brokerMaxConnections: int = whole(
        16_384,
        "connections",
        1,
        1024 * 1024,
        "Maximum number of open connections. Each uses a file descriptor. Pulsar's default is 0, which means no limit.",
        AT_ONCE,
    )
    brokerIdleTimeoutSeconds: int = whole(
        300,
        "seconds",
        0,
        TEN_YEARS_SECONDS,
        "A private broker, which a client started, exits after this time without a call, if no query has the lease of "
        "a subscription. 0: it does not exit.",
        AT_ONCE,
    )
    brokerShutdownTimeoutMs: int = whole(
        60_000,
        "milliseconds",
        0,
        3_600_000,
        "Maximum time in which a stopping broker completes queued appends and seals segments. An append that is not "
        "complete after this time is not acknowledged. The next broker recovers an unsealed segment when it starts.",
        AT_ONCE,
    )
    bindAddress: str = text(
        "address",
        "Address at which the broker listens instead of its private Unix socket: grpc://127.0.0.1:PORT or "
        "grpc+tls://HOST:PORT. An address that other hosts can reach needs tlsCertificateFilePath, tlsKeyFilePath, "
        "tlsTrustCertsFilePath and authenticationTokens. If the address requires credentials, the broker also listens "
        "at its private socket.",
        risk="opens the store to other users of the host, or to other hosts",
    )
    webServiceAddress: str = text(
        "address",
        "Address of the HTTP service with metrics, health and status page: http://127.0.0.1:PORT or "
        "https://HOST:PORT. An address that other hosts can reach needs https, a certificate and tokens.",
        risk="shows names and figures of the store to other users of the host, or to other hosts",
    )
    metricsLedgersMax: int = whole(
        1_000,
        "ledgers",
        0,
        100_000,
        "Maximum number of ledgers with their own metrics. The metrics of all other ledgers are summed.",
        AT_ONCE,
    )
    metricsCursorsMax: int = whole(
        100,
        "cursors",
        0,
        100_000,
        "Maximum number of cursors of one ledger with their own metrics. The metrics of all other cursors are summed.",
        AT_ONCE,
    )
    logFormat: str = text(
        "one of " + ", ".join(LOG_FORMATS),
        "Format of broker.log. `json` is one JSON object a line, and adds a line for each step of a batch.",
        AT_ONCE,
        default="text",
        choices=LOG_FORMATS,
    )
    openTelemetryEndpoint: str = text(
        "address",
        "Base address of a collector of OpenTelemetry, to which the broker pushes its metrics: http://HOST:4318. Needs "
        "the extra `otel`. Empty: the address in OTEL_EXPORTER_OTLP_METRICS_ENDPOINT or OTEL_EXPORTER_OTLP_ENDPOINT.",
        risk="sends names and figures of the store to another host",
    )
    tlsCertificateFilePath: str = text(
        "path",
        "PEM file with the certificate of the broker and its chain.",
        risk="shows clients another identity of the broker",
    )
    tlsKeyFilePath: str = text(
        "path",
        "PEM file with the key of the certificate, with mode 600.",
        risk="uses another key, which others may know",
    )
    tlsTrustCertsFilePath: str = text(
        "path",
        "PEM file with the authority that signs the clients' certificates. The broker refuses a client without such a "
        "certificate.",
        risk="admits clients of another authority",
    )
    authenticationTokens: str = text(
        "reference",
        "Reference to the bearer tokens of clients: file:/path (one token a line, mode 600) or env:NAME. With several "
        "tokens you can replace a token while clients run. Do not set a token itself.",
        risk="admits clients with other tokens",
    )
