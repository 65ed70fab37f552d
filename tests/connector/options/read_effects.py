"""Effects of the options of reads: ledgers, start and end, columns, size of a batch."""

from __future__ import annotations

from collections.abc import Callable

from pyspark_ledger.connector.read.ledger import prefetch_client, scan
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.ledgers import ChangePolicy
from tests.rigs.data_source import Given, OptionDrive, OptionDrives, World, said
from tests.rigs.driven_broker import DrivenBroker
from tests.rigs.entry import entry

ALL = list(range(10))
SHOWN = {
    "tlsTrustCertsFilePath": "{ca}",
    "tlsCertificateFilePath": "{client}",
    "tlsKeyFilePath": "{client_key}",
    "authParams": "{token}",
}
EXPLICIT = {"subscription": "billing", "ackMode": "explicit"}


def addressed(world: World, given: Given) -> object:
    """The rows of a read whose ledger only the option names; there is another ledger."""
    world.ledger(2)
    world.places["other"] = world.places["name"]
    world.ledger(3)
    return said(lambda: sorted(world.numbers({"path": "", **given})))


def stored(world: World, given: Given) -> object:
    world.ledger(2)
    with world.patch.context() as patch:
        patch.chdir(world.folder)
        patch.delenv("LEDGER_STORE", raising=False)
        world.places["address"] = world.broker.record.address
        return said(lambda: world.numbers({"store": "", **given}))


def without_broker(world: World, given: Given) -> object:
    """The rows of a read whose store is not in a bucket."""
    world.ledger(2)
    return said(lambda: world.numbers(given))


def guarded(world: World, given: Given) -> object:
    """A read from a broker that asks for a certificate and a token."""
    broker = world.guarded
    log = broker.store.create_ledger(CreateLedger("secret", exist_ok=True))
    if not log.snapshot.end.entry_id:
        log.append([entry(b"x")]).result(60)
    more = {"store": broker.record.remote, "path": "secret", "mapping": "off"}
    return said(lambda: len(world.rows(given, **more)))


def both(world: World, given: Given) -> object:
    """The rows of a bounded read, and of a stream's first batch."""
    world.ledger()
    return [world.numbers(given), world.stream(given)]


def started(world: World, given: Given) -> object:
    """The same of a stream that begins where streams begin."""
    world.ledger()
    begins = {} if given else {"startingPosition": "latest"}
    return [world.numbers(given), world.stream({**begins, **given})]


def trimmed(world: World, given: Given) -> object:
    """Return the rows of a planned read whose segments are deleted: of a bounded read, and of a stream."""
    found = []
    for read in ("batch", "stream"):
        world.ledger(4, entries=1)
        name = world.places["name"]

        def trim(name: str = name) -> None:
            world.broker.store.policies.change(
                ChangePolicy(name, values={"retentionTimeInMinutes": 0, "retentionSizeInMB": 0})
            )
            world.broker.store.ledger(name).trim()

        how = world.rows if read == "batch" else world.stream
        found.append(said(lambda how=how, trim=trim: how(given, before=trim)))  # type: ignore[misc]
    return [answer if isinstance(answer, str) else "goes on" for answer in found]


def waited(world: World, given: Given) -> object:
    """Return the seconds that a read waits for a missing ledger, which it checks once a second."""
    world.ledger(0)
    seconds = [0]
    with world.patch.context() as patch:
        patch.setattr(scan, "monotonic_ms", lambda: seconds[0] * 1000)
        patch.setattr(scan, "pause", lambda _: seconds.append(seconds.pop() + 1))
        error = said(lambda: world.rows({**given, "path": "never"}))
    return error, seconds[0]


def last_column(world: World, given: Given) -> object:
    world.ledger(1)
    return world.names(given)[-1]


def typed(world: World, given: Given) -> object:
    """Columns of a ledger of messages."""
    world.ledger(0)
    world.broker.store.create_ledger(CreateLedger(world.places["name"])).append([entry((7).to_bytes(8, "big"))]).result(
        60
    )
    row = world.rows(given)[0]
    return row.get("value")


def undecodable(world: World, given: Given) -> object:
    """Return the result of a stream for a payload that does not match its schema, and the ledgers after it."""
    world.ledger(0)
    name = world.places["name"]
    world.broker.store.create_ledger(CreateLedger(name)).append([entry(b"xyz")]).result(60)
    result = said(lambda: world.stream({**given, "payloadSchema": "INT64"}))
    return result, [found.removeprefix(name) for found in _short(world) if found.startswith(f"{name}-")]


def _short(world: World) -> list[str]:
    return [name.rpartition("/")[2] for name in world.broker.store.names()]


def cursors(world: World, given: Given) -> object:
    world.ledger(1)
    world.stream(given)
    return world.broker.store.cursors.names(world.broker.store.ledger(world.places["name"]).name)


def redelivered(world: World, given: Given) -> object:
    """Return the rows twenty seconds after a read without acknowledgement, and the ledger of given-up rows."""
    world.ledger(2)
    options = world.options({**given, "startingPosition": "earliest"})
    name, found = world.places["name"], []
    source = world.source(options)
    reader = source.streamReader(source.schema())
    at = reader.initialOffset()
    for _ in range(3):
        end = reader.latestOffset(at, reader.getDefaultReadLimit())
        parts = reader.partitions(at, end) if end != at else []
        found.append([row["n"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()])
        if end != at:
            reader.commit(end)
        at = end
        world.broker.pass_ms(20_000)
    reader.stop()
    return found[1], [ledger.removeprefix(name) for ledger in _short(world) if ledger.startswith(f"{name}-")]


def first_batch(world: World, given: Given) -> object:
    world.ledger()
    return world.stream(given)


def first_batch_without_admission_control(world: World, given: Given) -> object:
    """Return the rows of the first batch, planned as by Spark 4.0 and 4.1."""
    world.ledger()
    source = world.source(given, startingPosition="earliest")
    reader = source.streamReader(source.schema())
    try:
        end = reader.latestOffset()
        parts = reader.partitions(reader.initialOffset(), end)
        return [row["n"] for part in parts for batch in reader.read(part) for row in batch.to_pylist()]
    finally:
        reader.stop()


def after_a_minute(world: World, given: Given) -> object:
    world.ledger()
    return world.stream(given, before=lambda: world.broker.pass_ms(60_000))


def tasks(world: World, given: Given) -> object:
    world.ledger()
    return world.tasks(given)


def over_flight(world: World, given: Given) -> object:
    """Return the number of block streams that the broker serves for a bounded read."""
    world.ledger(2)
    return _counted(world.broker, lambda: world.numbers(given))


def _counted(broker: DrivenBroker, call: Callable[[], object]) -> int:
    served = []
    server = broker.servers[-1]
    blocks = server._blocks
    with broker.patch.context() as patch:
        patch.setattr(server, "_blocks", lambda *asked: served.append(asked) or blocks(*asked))
        call()
    return len(served)


def announced(world: World, given: Given) -> object:
    """Return how a stream's driver announces its ranges: paced, by mapping, by direct reads."""
    world.ledger(2)
    seen = []
    planner = world.broker.source.prefetch_planner
    plan = planner.plan
    with world.patch.context() as patch:
        patch.setattr(prefetch_client, "WORTH_BYTES", 1)
        patch.setattr(
            planner, "plan", lambda asked: seen.append((asked.paced, asked.mapping, asked.direct)) or plan(asked)
        )
        world.stream(given)
    return sorted(set(seen))


DRIVES: OptionDrives = {
    "broker": [OptionDrive(without_broker, [0, 1], {"none": "Refused"})],
    "path": [OptionDrive(addressed, "Refused", {"{name}": [0, 1, 2]})],
    "ledger": [OptionDrive(addressed, "Refused", {"{name}": [0, 1, 2]})],
    "ledgers": [OptionDrive(addressed, "Refused", {"{name},{other}": [0, 0, 1, 1, 2]})],
    "ledgersPattern": [OptionDrive(addressed, "Refused", {"{name}|{other}": [0, 0, 1, 1, 2]})],
    "store": [OptionDrive(stored, "NotFound", {"{address}": [0, 1]})],
    **{
        name: [
            OptionDrive(
                guarded,
                "Refused" if name in {"tlsCertificateFilePath", "tlsKeyFilePath"} else "Unauthenticated",
                {SHOWN[name]: 1},
                {other: text for other, text in SHOWN.items() if other != name},
            )
        ]
        for name in SHOWN
    },
    "subscription": [OptionDrive(cursors, [], {"billing": ["billing"]})],
    "startingPosition": [OptionDrive(started, [ALL, []], {"{p5}": [ALL[5:]] * 2, "earliest": [ALL] * 2})],
    "startingTimestamp": [OptionDrive(started, [ALL, []], {"{t5}": [ALL[5:]] * 2, "{iso5}": [ALL[5:]] * 2})],
    "startingPositions": [OptionDrive(started, [ALL, []], {'{{"{name}": "{p5}"}}': [ALL[5:]] * 2})],
    "startingTimestamps": [
        OptionDrive(
            started, [ALL, []], {text: [ALL[5:]] * 2 for text in ('{{"{name}": {t5}}}', '{{"{name}": "{iso5}"}}')}
        )
    ],
    "endingPosition": [OptionDrive(both, [ALL] * 2, {"{p5}": [ALL[:5]] * 2})],
    "endingTimestamp": [OptionDrive(both, [ALL] * 2, {"{t5}": [ALL[:5]] * 2, "{iso5}": [ALL[:5]] * 2})],
    "endingPositions": [OptionDrive(both, [ALL] * 2, {'{{"{name}": "{p5}"}}': [ALL[:5]] * 2})],
    "endingTimestamps": [
        OptionDrive(both, [ALL] * 2, {text: [ALL[:5]] * 2 for text in ('{{"{name}": {t5}}}', '{{"{name}": "{iso5}"}}')})
    ],
    "table": [OptionDrive(last_column, "s", {"cursors": "leaseUntilMs"})],
    "failOnDataLoss": [OptionDrive(trimmed, ["DataLoss", "DataLoss"], {"false": ["goes on", "goes on"]})],
    "waitForLedger": [OptionDrive(waited, ("NotFound", 0), {"true": ("NotFound", 300)})],
    "waitTimeoutMs": [OptionDrive(waited, ("NotFound", 300), {"7000": ("NotFound", 7)}, {"waitForLedger": "true"})],
    "includeMetadata": [OptionDrive(last_column, "s", {"true": "__position"})],
    "columns": [OptionDrive(last_column, "s", {"n": "n"})],
    "payloadSchema": [OptionDrive(typed, (7).to_bytes(8, "big"), {"INT64": 7})],
    "rescuedDataColumn": [OptionDrive(last_column, "s", {"_rescued": "_rescued"})],
    "deadLetterLedger": [OptionDrive(undecodable, ("Corrupt", []), {"{name}-dead": ([], ["-dead"])})],
    "ackMode": [OptionDrive(last_column, "s", {"explicit": "__redeliveryCount"})],
    "ackTimeout": [OptionDrive(redelivered, ([], []), {"10s": ([0, 1], [])}, EXPLICIT)],
    "maxRedeliveries": [
        OptionDrive(redelivered, ([0, 1], []), {"0": ([], ["-billing-DLQ"])}, {**EXPLICIT, "ackTimeout": "10s"})
    ],
    "maxBytesPerTrigger": [OptionDrive(first_batch, ALL, {"1": [0]})],
    "maxRowsPerTrigger": [OptionDrive(first_batch, ALL, {"3": [0, 1, 2]})],
    "minRowsPerTrigger": [OptionDrive(first_batch, ALL, {"20": []})],
    "maxTriggerDelay": [OptionDrive(after_a_minute, [], {"30s": ALL}, {"minRowsPerTrigger": "20"})],
    "firstBatch": [
        OptionDrive(first_batch_without_admission_control, [0, 1, 2], {"everything": ALL}, {"maxRowsPerTrigger": "3"})
    ],
    "minPartitionBytes": [OptionDrive(tasks, 1, {"1": 4})],
    "targetPartitionBytes": [OptionDrive(tasks, 4, {"1": 10}, {"minPartitionBytes": "1"})],
    "mapping": [
        OptionDrive(over_flight, 0, {"off": 1}),
        OptionDrive(announced, [(True, True, True)], {"off": [(True, False, True)]}),
    ],
    "directReads": [OptionDrive(announced, [(True, True, True)], {"off": [(True, True, False)]})],
    "pacing": [OptionDrive(announced, [(True, True, True)], {"false": [(False, True, True)]})],
}
