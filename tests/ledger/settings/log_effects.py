"""Effects of the ledgers' settings: what is sealed, retained, remembered and waited for."""

from __future__ import annotations

from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.protocol.actions import DescribeLedger
from pyspark_ledger.ledger.protocol.commits import CommitRun, CommitRuns, LedgerParts, PartRun
from pyspark_ledger.ledger.protocol.ledgers import PublishedNote
from pyspark_ledger.ledger.transport.part_writer import PartWriter
from tests.rigs.driven_broker import Drive, DrivenBroker, Drives
from tests.rigs.entry import entry
from tests.rigs.store import stage

MINUTE = 60_000
OFFLOADING = {"managedLedgerOffloadBucket": "{folder}", "managedLedgerOffloadThresholdInSeconds": 30}


def segments(broker: DrivenBroker, log: ManagedLedger) -> list[int]:
    """The ledgers of a log that are sealed and kept."""
    return [part.ledger_id for part in broker.client.ask(DescribeLedger(log.name)).segments if part.close_ms]


def block_bytes(broker: DrivenBroker) -> object:
    info = broker.store.metadata.ledger(broker.log().name).info
    return next(pair.value for pair in info.properties if pair.key == "ledger.blockBytes")


def sealed_of_five(broker: DrivenBroker) -> object:
    log = broker.log()
    for _ in range(5):
        log.append([entry(b"x")]).result(60)
    return len(segments(broker, log))


def sealed_of_large(broker: DrivenBroker) -> object:
    log = broker.log()
    for _ in range(5):
        log.append([entry(b"x" * 600_000)]).result(60)
    return len(segments(broker, log))


def sealed_by_age(broker: DrivenBroker) -> object:
    log = broker.log()
    log.append([entry(b"x")]).result(60)
    broker.pass_ms(3 * MINUTE)
    broker.store.upkeep.round()
    return len(segments(broker, log))


def sealed_when_full(broker: DrivenBroker) -> object:
    log = broker.log(1)
    for _ in range(3):
        log.append([entry(b"x")]).result(60)
    return len(segments(broker, log)) > 0


def kept(broker: DrivenBroker, *, size: int = 1, published: bool = False) -> int:
    """Return how many of three sealed segments exist two minutes later."""
    log = broker.filled(3, payload=b"x" * size)
    if published:
        log.change_properties(PublishedNote("a", segments(broker, log)[-1]).properties("/a"), [])
    broker.pass_ms(2 * MINUTE)
    broker.store.upkeep.round()
    return len(segments(broker, log))


def staged_after_two_minutes(broker: DrivenBroker) -> object:
    """Parts, batches of writes that are made once, and manifests, when the store is opened again."""
    log = broker.log()
    stage(broker.store, "failed", 1, [b"x"], 1)
    parts = [stage(broker.store, "once", 1, [b"x"], 2)]
    broker.store.commits.commit(CommitRun(log.name, "once", 1, 7, 2, parts, once=True))
    several = [LedgerParts(log.name, [stage(broker.store, "several", 1, [b"x"], 3)])]
    broker.store.commits.commit_several(CommitRuns("several", 1, 7, 3, several, once=True))
    broker.pass_ms(2 * MINUTE)
    log.roll_over()
    log.append([entry(b"x")]).result(60)
    log.roll_over()
    known = log.committed_batch("once") is not None
    broker = broker.again()
    left = len(list((broker.store.path / "staging").rglob("*.part")))
    manifest = broker.store.metadata.manifests.newest("several") is not None
    broker.close()
    return left, known, manifest


def sealed_by_promotion(broker: DrivenBroker) -> object:
    """Return how many segments a part of 600,000 bytes adds to the sealed segments."""
    log = broker.log()
    run = PartRun("q", 1, 7, 1, int(str(block_bytes(broker))), 1)
    with PartWriter.to_file(broker.store.commits.open_part("q", 1), run) as file:
        file.write([entry(b"x" * 600_000, run=1)], 1)
        part = file.close()
    broker.store.commits.commit(CommitRun(log.name, "q", 1, 7, 1, [part]))
    return len(segments(broker, log))


def producers_known(broker: DrivenBroker) -> object:
    log = broker.log(deduplication=True)
    for name in ("a", "b"):
        log.append([entry(b"x", producer_name=name, sequence_id=3)]).result(60)
        broker.pass_ms(2 * MINUTE)
    log.roll_over()
    return [log.last_sequence_id(name, 0) for name in ("a", "b")]


DRIVES: Drives = {
    "ledgerBlockSizeBytes": [Drive(block_bytes, str(64 << 20), {6 << 20: str(6 << 20)})],
    "managedLedgerMaxEntriesPerLedger": [Drive(sealed_of_five, 0, {2: 2})],
    "managedLedgerMaxSizePerLedgerMbytes": [Drive(sealed_of_large, 0, {1: 2})],
    "managedLedgerMaxLedgerRolloverTimeMinutes": [Drive(sealed_by_age, 0, {1: 1})],
    "managedLedgerMinLedgerRolloverTimeMinutes": [Drive(sealed_when_full, True, {10: False})],
    "defaultRetentionTimeInMinutes": [Drive(kept, 3, {1: 0})],
    "defaultRetentionSizeInMB": [Drive(lambda broker: kept(broker, size=600_000), 3, {1: 2})],
    "retentionWaitsForOffload": [Drive(kept, 0, {1: 3}, {"defaultRetentionTimeInMinutes": 1, **OFFLOADING})],
    "deleteAfterPublish": [Drive(lambda broker: kept(broker, published=True), 3, {1: 0})],
    "stagingRetentionSeconds": [Drive(staged_after_two_minutes, (1, True, True), {60: (0, False, False)})],
    "stagedPartPromotionMinBytes": [Drive(sealed_by_promotion, 0, {500_000: 1})],
    "brokerDeduplicationProducerInactivityTimeoutMinutes": [Drive(producers_known, [3, 3], {3: [-1, 3]})],
}
