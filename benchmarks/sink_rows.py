"""Rows per second of the streaming sink on Spark 4.0, against the sink on the Spark of this environment.

Spark 4.0 has no class for a streaming sink of Arrow batches. There the sink is one class for batch and streaming
writes, because Spark passes Arrow batches to such a class (`connector.spark_features`). For comparison, a second sink
receives single rows and writes nothing. Each measurement copies the same ledger by one micro-batch.

Needs .venv-spark40 (`make test-sparks SPARKS=spark40` creates it). The ratio is of speeds: 4.0 over this environment.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.harness import ROUNDS_MIN
from benchmarks.rows import ROW_BYTES, fill
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.connect import stop_broker
from pyspark_ledger.ledger.names import canonical_name

ROOT = Path(__file__).parent.parent
ENTRIES = 24
OLDER = ROOT / ".venv-spark40" / "bin" / "python"
WORKER = """
import itertools, json, sys, time
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamWriter, WriterCommitMessage

class RowSink(DataSource):
    @classmethod
    def name(cls): return "rowsink"
    def streamWriter(self, schema, overwrite): return RowWriter()

class RowWriter(DataSourceStreamWriter):
    def write(self, iterator):
        for _ in iterator: pass
        return WriterCommitMessage()
    def commit(self, messages, batchId): pass
    def abort(self, messages, batchId): pass

store, folder = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
spark.dataSource.register(RowSink)
for number, line in enumerate(sys.stdin):
    sink = line.strip()
    rows = spark.readStream.format("ledger").option("store", store).option("startingPosition", "earliest").load("rows")
    write = rows.writeStream.format(sink).option("checkpointLocation", f"{folder}/{number}").trigger(availableNow=True)
    if sink == "ledger":
        write = write.option("store", store).option("ledger", f"copy-{spark.version}-{number}".replace(".", "-"))
    query = write.start()
    query.awaitTermination()
    progress = json.loads(query.lastProgress.json)
    seconds = progress["durationMs"]["addBatch"] / 1000
    print(json.dumps({"rows": progress["numInputRows"], "seconds": seconds}), flush=True)
"""


class SinkWorker:
    """Process with a Spark session that copies the ledger on request."""

    def __init__(self, python: Path | str, store: Path, folder: Path) -> None:
        folder.mkdir()
        environment = {**os.environ, "PYSPARK_PYTHON": str(python), "PYTHONPATH": str(ROOT)}
        command = [str(python), "-c", WORKER, str(store), str(folder)]
        pipe, nothing = subprocess.PIPE, subprocess.DEVNULL
        self._process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=nothing, text=True)

    def rows_per_second(self, sink: str) -> float:
        """Run one micro-batch into a sink, and return its rate."""
        requests, answers = self._process.stdin, self._process.stdout
        if requests is None or answers is None:
            message = "the worker has no pipes"
            raise RuntimeError(message)
        requests.write(f"{sink}\n")
        requests.flush()
        done = json.loads(answers.readline())
        return float(done["rows"] / done["seconds"])

    def close(self) -> None:
        """Close the worker's input, which ends the process."""
        self._process.communicate()


def main() -> None:
    """Print the rates of each round. The last line is the ratio of Spark 4.0 to this environment."""
    if not OLDER.exists():
        sys.exit(f"{OLDER} is missing; make test-sparks SPARKS=spark40 creates it")
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        folder = Path(name)
        api = connect(folder / "store", create=True)
        fill(api.client, canonical_name("rows"), ENTRIES, ROW_BYTES["120B"])
        workers = {
            "4.0": SinkWorker(OLDER, folder / "store", folder / "older"),
            "here": SinkWorker(sys.executable, folder / "store", folder / "here"),
        }
        kinds = {
            "arrow on 4.0": ("4.0", "ledger"), "arrow here": ("here", "ledger"), "rows on 4.0": ("4.0", "rowsink"),
        }  # fmt: skip
        rates: dict[str, list[float]] = {kind: [] for kind in kinds}
        for number in range(ROUNDS_MIN + 1):
            for kind, (worker, sink) in kinds.items():
                rate = workers[worker].rows_per_second(sink)
                if number:
                    rates[kind].append(rate)
        for worker in workers.values():
            worker.close()
        stop_broker(folder / "store")
    for kind, found in rates.items():
        print(f"  {kind}: {statistics.median(found) / 1e3:,.0f} thousand rows/s, median of {len(found)}")
    pairs = zip(rates["arrow on 4.0"], rates["arrow here"], strict=True)
    print(f"ratio sink_rows {statistics.median(older / newer for older, newer in pairs):.3f}")


if __name__ == "__main__":
    main()
