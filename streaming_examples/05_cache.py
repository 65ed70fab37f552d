# Databricks notebook source
# MAGIC %md
# MAGIC # One read for many readers
# MAGIC
# MAGIC Three queries go through a year of flights that lies in object storage only. The broker's cache knows where each
# MAGIC stands, so storage is read about once for all of them. Then the policies of the cache, side by side.

# COMMAND ----------

import time
from pathlib import Path

import matplotlib.pyplot as plt

from pyspark_ledger import connect, session
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, Empty
from pyspark_ledger.ledger.protocol.cache import CacheMetrics, RegisterReader
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.settings.cache import CACHE_POLICIES
from streaming_examples.flights import flights

spark = session("cache")
store = connect()

# COMMAND ----------

# MAGIC %md
# MAGIC **A backlog in object storage.** Here it is a directory; a bucket is the same. What is sealed and copied there
# MAGIC goes from this disk.

# COMMAND ----------

store.offload_to(Path("history").absolute())
year = store.ledger("flights")
table = flights()
for first in range(0, table.num_rows, 10_000):
    year.append(table.slice(first, 10_000))
year.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
year.offload(seal=True)
print("ledgers whose data went from here:", year.trim().local)


def counted() -> CacheMetrics:
    """Return the present counters of the cache."""
    return store.client.call("cache", Empty())


# COMMAND ----------

# MAGIC %md
# MAGIC **Three queries,** started one after another, each in batches of 4 MiB. Each tells the broker what it reads
# MAGIC next, and that is fetched before its tasks ask; one that runs away waits a little for those behind it.

# COMMAND ----------

before, queries = counted(), []
for number in range(3):
    stream = spark.readStream.format("ledger").option("startingPosition", "earliest")
    writer = stream.option("maxBytesPerTrigger", "4m").load("flights").writeStream.format("noop")
    writer = writer.option("checkpointLocation", f"checkpoints/reader-{number}")
    queries.append(writer.trigger(availableNow=True).start())
    time.sleep(0.5)
for query in queries:
    query.awaitTermination()
after = counted()

rows = [sum(progress["numInputRows"] for progress in query.recentProgress) for query in queries]
assert rows == [table.num_rows] * 3
entries = year.describe().segments[0].entries
from_objects, from_memory = after.object_misses - before.object_misses, after.memory_hits - before.memory_hits
print(f"{rows[0]:,} rows each; entries read from object storage: {from_objects} of {entries}")
print(f"entries served from memory: {from_memory}, read ahead: {after.ahead_bytes - before.ahead_bytes:,} bytes")
assert from_objects == entries

# COMMAND ----------

# MAGIC %md
# MAGIC **Where entries come from.** A log in local files is mapped by its readers: the system's page cache serves them,
# MAGIC and the broker holds no byte of it. So its limit is for object storage alone. Two readers go through one log,
# MAGIC first in local files, then when it lies in object storage only.

# COMMAND ----------

log = store.ledger("log")
for first in range(0, 4_500, 10):
    log.append([{"number": number, "text": f"{number:06d}" * 2500} for number in range(first, first + 10)])
NAME = canonical_name("log")
segment = store.client.describe(NAME).segments[0]


def at(entry: int) -> Position:
    """Return the position of an entry of the log."""
    return Position(segment.ledger_id, entry)


def follow(reader: str, entry: int, alive_ms: int = 60_000) -> None:
    """Report a reader's position."""
    store.client.call("cache.follow", RegisterReader(NAME, reader, at(entry), alive_ms))


def read(reader: str, first: int, end: int, *, mapping: bool = False) -> None:
    """Read some entries as a reader."""
    wanted = ReadRequest(NAME, PositionRange(at(first), at(end)), subscription=reader)
    for _ in store.client.read_blocks(wanted, mapping=mapping):
        pass


SOURCES = {
    "memory": "memory_hit_bytes",
    "page cache": "page_cache_hit_bytes",
    "local files": "file_miss_bytes",
    "object storage": "object_miss_bytes",
}


def two_readers(place: str) -> dict[str, int]:
    """Bytes that two readers of the log's first 100 entries are handed out, by where these came from."""
    before = counted()
    for reader in ("first", "second"):
        follow(f"{place} {reader}", 0)
    for reader in ("first", "second"):
        read(f"{place} {reader}", 0, 100)
        follow(f"{place} {reader}", segment.entries, 0)
    after = counted()
    return {name: getattr(after, field) - getattr(before, field) for name, field in SOURCES.items()}


local = two_readers("local")
log.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
log.offload(seal=True)
log.trim()
remote = two_readers("remote")
for name in SOURCES:
    print(f"{name:<16}{local[name]:>14,}{remote[name]:>14,}")
assert local["page cache"] == local["local files"] == sum(local.values()) / 2 > 0
assert remote["memory"] == remote["object storage"] == sum(remote.values()) / 2 > 0

# COMMAND ----------

# MAGIC %md
# MAGIC **Policies.** Six readers go through that log, four times the cache and in object storage only, three of them at
# MAGIC half the pace. The order of what they ask for is the same each time; what is evicted when the cache is full is
# MAGIC not. Each entry that was evicted too early is read from object storage again.

# COMMAND ----------

CACHE_MB, STEP = 16, 16


def change(name: str, value: int | str | None = None) -> None:
    """Set a setting of the broker; without a value its default."""
    store.client.call("settings.change", ChangeSetting(name, value))


def reads_per_entry(policy: str) -> float:
    """Entries read from object storage for each that there is, when six readers go through the log."""
    change("cacheEvictionPolicy", policy)
    change("managedLedgerCacheSizeMB", 0)
    while counted().size_bytes:  # what readers reference still counts until they release it
        time.sleep(0.1)
    change("managedLedgerCacheSizeMB", CACHE_MB)
    start, places = counted().object_misses, [0] * 6
    for turn in range(200):
        for number in range(6):
            if turn % (1 + number // 3) or turn < 2 * number or places[number] >= segment.entries:
                continue
            reader, first = f"{policy} {number}", places[number]
            places[number] = min(first + STEP, segment.entries)
            follow(reader, first)
            read(reader, first, places[number])
    for number in range(6):
        follow(f"{policy} {number}", segment.entries, 0)
    assert min(places) >= segment.entries
    return (counted().object_misses - start) / segment.entries


found = {policy: reads_per_entry(policy) for policy in CACHE_POLICIES}
for name in ("cacheEvictionPolicy", "managedLedgerCacheSizeMB"):
    change(name)
print({policy: round(reads, 2) for policy, reads in found.items()})
assert min(found, key=found.__getitem__) == "cursor-distance"

# COMMAND ----------

plt.figure(figsize=(9, 3))
plt.barh(list(found)[::-1], list(found.values())[::-1])
plt.axvline(1, color="black", linewidth=0.8)
plt.xlabel("reads of object storage for each entry, by six readers (1: each is read once)")
plt.tight_layout()
plt.show()
