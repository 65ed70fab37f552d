"""Settings of the broker as a service: limits of concurrent work, lifetime, and listening address."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark_ledger.ledger.settings.setting import AT_ONCE, MIB, TEN_YEARS_SECONDS, text, whole


@dataclass(frozen=True)
class ServiceSettings:
    """The broker: limits, life, and where it listens."""

    maxInFlightAppendBytes: int = whole(
        64 * MIB,
        "bytes",
        MIB,
        16 * 1024 * MIB,
        "Bytes of one producer that wait for the disk. Above that the broker stops reading from the producer.",
        AT_ONCE,
    )
    maxMessagePublishBufferSizeInMB: int = whole(
        512,
        "MiB",
        1,
        1024 * 1024,
        "Bytes of all producers together that wait for the disk. Above that the broker stops reading from every "
        "producer with waiting bytes. One entry of each producer always fits.",
        AT_ONCE,
    )
    maxMessageSize: int = whole(
        128 * MIB,
        "bytes",
        5 * MIB,
        2 * 1024 * MIB,
        "Maximum size of one request of a producer: one entry, or a few MiB of small ones. Also limits the size "
        "of one entry, independent of the block size.",
        AT_ONCE,
    )
    maxRequestBodyBytes: int = whole(
        16 * MIB,
        "bytes",
        64 * 1024,
        1024 * MIB,
        "Maximum size of any other request. Schemas and the parts of a batch are the longest.",
        AT_ONCE,
    )
    maxWaitMillis: int = whole(
        60_000,
        "milliseconds",
        0,
        100_000,
        "Time for which the broker waits for new entries for a reader before the reader asks again. A client "
        "allows a call two minutes.",
        AT_ONCE,
    )
    maxConcurrentRequests: int = whole(
        8_192, "calls", 1, 1024 * 1024, "Calls and streams that are served at once. Each has a thread.", AT_ONCE
    )
    maxConcurrentReaders: int = whole(
        2_048,
        "readers",
        1,
        1024 * 1024,
        "Readers that receive blocks at once. Readers on this host map files and do not count.",
        AT_ONCE,
    )
    brokerMaxConnections: int = whole(
        16_384,
        "connections",
        1,
        1024 * 1024,
        "Connections at once. Each is a descriptor. Pulsar's default, 0, has only the system's limit.",
        AT_ONCE,
    )
    brokerIdleTimeoutSeconds: int = whole(
        300,
        "seconds",
        0,
        TEN_YEARS_SECONDS,
        "A broker that the library started exits after this time without a call or a lease; 0: never.",
        AT_ONCE,
    )
    brokerShutdownTimeoutMs: int = whole(
        60_000,
        "milliseconds",
        0,
        3_600_000,
        "Time for which a stopping broker may settle queued appends and seal segments. Appends that are not "
        "settled by then were never acknowledged. The next start recovers unsealed segments.",
        AT_ONCE,
    )
    bindAddress: str = text(
        "address",
        "Address at which the broker listens instead of its private socket: grpc://127.0.0.1:PORT or "
        "grpc+tls://HOST:PORT. Beyond loopback it needs the certificate, its key, the authority and the tokens. If it "
        "requires credentials, the private socket stays beside it.",
    )
    webServiceAddress: str = text(
        "address",
        "Address of the HTTP service with metrics, health and status page: http://127.0.0.1:PORT or https://HOST:PORT. "
        "Beyond loopback it needs https, a certificate and tokens.",
    )
    metricsLedgersMax: int = whole(
        1_000,
        "ledgers",
        0,
        100_000,
        "Ledgers whose metrics are listed one by one. The others are summed.",
        AT_ONCE,
    )
    metricsCursorsMax: int = whole(
        100,
        "cursors",
        0,
        100_000,
        "Cursors of one ledger whose metrics are listed one by one. The others are summed.",
        AT_ONCE,
    )
    tlsCertificateFilePath: str = text("path", "Certificate of the broker and the certificates that signed it, PEM.")
    tlsKeyFilePath: str = text("path", "Key of the certificate, PEM, mode 600.")
    tlsTrustCertsFilePath: str = text(
        "path", "Authority of the clients' certificates, PEM: a client without a certificate of it is refused."
    )
    authenticationTokens: str = text(
        "reference",
        "Reference to the bearer tokens of clients: file:/path, one token a line, mode 600, or env:NAME. Several "
        "tokens allow a rotation while clients run. Never the token itself.",
    )
