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

from ledger.cache_calls import CacheMetrics, FollowLedger
from ledger.cache_setting import CACHE_POLICIES
from ledger.names import canonical_name
from ledger.position import Position, PositionRange
from ledger.protocol import ChangeSetting, Empty
from ledger.read_calls import ReadRequest
from pyspark_ledger import connect, session
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
    """What the cache has counted so far."""
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
print(f"{rows[0]:,} rows each; entries read from storage: {after.misses - before.misses} of {entries}")
print(
    f"entries from the cache: {after.hits - before.hits}, read ahead: {after.ahead_bytes - before.ahead_bytes:,} bytes"
)
assert after.misses - before.misses == entries

# COMMAND ----------

# MAGIC %md
# MAGIC **Policies.** Six readers go through a log six times the cache, three of them at half the pace. The order of
# MAGIC what they ask for is the same each time; what is let go of when the cache is full is not.

# COMMAND ----------

log = store.ledger("log")
for entry in range(100):
    log.append([{"number": number, "text": f"{number:06d}" * 2000} for number in range(10 * entry, 10 * entry + 10)])
NAME, CACHE_MB = canonical_name("log"), 2
segment = store.client.describe(NAME).segments[0]


def reads_per_entry(policy: str) -> float:
    """Entries read from storage for each that there is, when six readers go through the log."""
    client = store.client
    for name, value in (("cacheEvictionPolicy", policy), ("managedLedgerCacheSizeMB", 0)):
        client.call("settings.change", ChangeSetting(name, value))
    while counted().lingering_bytes:  # what readers have still in their hands counts until they let go of it
        time.sleep(0.1)
    client.call("settings.change", ChangeSetting("managedLedgerCacheSizeMB", CACHE_MB))
    start, places = counted().misses, [0] * 6
    for turn in range(200):
        for number in range(6):
            if turn % (1 + number // 3) or turn < 2 * number or places[number] >= segment.entries:
                continue
            reader, at = f"{policy} {number}", places[number]
            end = places[number] = min(at + 2, segment.entries)
            client.call("cache.follow", FollowLedger(NAME, reader, Position(segment.ledger_id, at), 60_000))
            wanted = PositionRange(Position(segment.ledger_id, at), Position(segment.ledger_id, end))
            for _ in client.read_blocks(ReadRequest(NAME, wanted, subscription=reader)):
                pass
    for number in range(6):
        end = Position(segment.ledger_id, segment.entries)
        client.call("cache.follow", FollowLedger(NAME, f"{policy} {number}", end, 0))
    assert min(places) >= segment.entries
    return (counted().misses - start) / segment.entries


found = {policy: reads_per_entry(policy) for policy in CACHE_POLICIES}
for name in ("cacheEvictionPolicy", "managedLedgerCacheSizeMB"):
    store.client.call("settings.change", ChangeSetting(name))
assert min(found, key=found.__getitem__) == "cursor-distance"

# COMMAND ----------

plt.figure(figsize=(9, 3))
plt.barh(list(found)[::-1], list(found.values())[::-1])
plt.axvline(1, color="black", linewidth=0.8)
plt.xlabel("reads of storage for each entry, by six readers (1: each is read once)")
plt.tight_layout()
plt.show()
