# Databricks notebook source
# MAGIC %md
# MAGIC # Cursors that remember everything
# MAGIC
# MAGIC A log is read by somebody who does not finish in order. Rows are acknowledged one by one, by the hundred
# MAGIC thousand, while the broker is killed; nothing that was acknowledged comes back, nothing that was not is lost.
# MAGIC The rows are the flights that left New York in 2013.

# COMMAND ----------

import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from pyspark_ledger import Position, connect
from pyspark_ledger.ledger.client.acknowledge import acknowledge
from pyspark_ledger.ledger.cursor.cursor_log import recover_cursor_log
from pyspark_ledger.ledger.message.compression import ZSTD
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.positions.position_chunks import encode_state
from pyspark_ledger.ledger.positions.position_info import encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand
from streaming_examples.broker_control import kill_broker
from streaming_examples.flights import FLIGHT_ROWS, flights

ENTRY_ROWS = 1000
store = connect()
log = store.ledger("flights")
year = flights()
for first in range(0, len(year), ENTRY_ROWS):
    log.append(year.slice(first, ENTRY_ROWS))
gate = log.cursor("gate", log.describe().start)
place = log.describe().segments[0].ledger_id
print(f"{gate.state().backlog_rows:,} flights to handle")
assert gate.state().backlog_rows == FLIGHT_ROWS

# COMMAND ----------

# MAGIC %md
# MAGIC **Out of order.** Each round some flights are done with, at random: every third of what is left. They are
# MAGIC acknowledged in one call, which is durable when it returns. Before each call the broker is killed.

# COMMAND ----------

dice = np.random.default_rng(2013)
done = np.zeros(FLIGHT_ROWS, dtype=bool)
left, seconds, holes = [FLIGHT_ROWS], [], []
for _ in range(6):
    finished = np.flatnonzero(~done)
    finished = finished[dice.random(len(finished)) < 1 / 3]
    kill_broker(store.client)
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
# MAGIC What is left of the first entries, and how it went. Dark is what is still to be done.

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
# MAGIC **The rest, once.** What the cursor reads is exactly what is left: not one flight twice.

# COMMAND ----------

rest, end = gate.read()
assert rest.num_rows == np.count_nonzero(~done)
assert rest.equals(year.filter(~done).cast(rest.schema))
gate.acknowledge(end)
assert gate.state().backlog_rows == 0
print("all", FLIGHT_ROWS, "flights are done with, each once")

# COMMAND ----------

# MAGIC %md
# MAGIC **What it takes.** A cursor's state is Pulsar's `PositionInfo`, in chunks with a footer where it is large. Ten
# MAGIC million ranges of a log of forty million entries: as ranges, as words of bits, and as words with ZSTD.

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
# MAGIC **A file that was torn.** The cursor's own ledger is a file like any other. A copy of it, cut in the middle of
# MAGIC its last state, gives the newest one that is whole. The original is not touched.

# COMMAND ----------

gate.reset(log.describe().start)
gate.acknowledge_rows([(place, 3), (place, 5, 7)])
own = gate.acknowledge_rows([(place, 9)]).cursor_ledger
folder = Path("ledger-store") / "ledgers"
copy = Path("torn")
copy.mkdir(exist_ok=True)
data = (folder / f"{own}.ledger").read_bytes().rstrip(b"\0")
(copy / f"{own}.ledger").write_bytes(data[:-10])
older = recover_cursor_log(copy, own, "", fence=False)
newest = recover_cursor_log(folder, own, "", fence=False)
assert older is not None
assert newest is not None
assert (older.acknowledged.entry_count(), newest.acknowledged.entry_count()) == (1, 2)
print("torn:", older.acknowledged.entry_count(), "entry;", "whole:", newest.acknowledged.entry_count(), "entries")
