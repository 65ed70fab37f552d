"""Group-by of DuckDB over a scan of a ledger, against the same query over an Arrow IPC file with the same rows.

The rows are the 3 million flights of `benchmarks.stream_read_kafka_columns`. DuckDB reads the file as a dataset of
pyarrow, which decodes only the columns of the query, with a thread for each core. The scan names these columns. Ledger
and file are compressed with LZ4, the default of both. The ratio `duckdb_scan_plain` compares the scan with a file
without compression, which takes seven times the space of the ledger.

A process of its own runs the query over the scan, and measures the peak of its anonymous and shared memory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from benchmarks.harness import compare
from benchmarks.raw_disk import bench_dir
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import StopBroker

QUERY = "select origin, sum(distance) from rows group by origin order by origin"
COLUMNS = ["origin", "distance"]
ROUNDS = 21  # a round takes a tenth of a second
_FILE_BATCH_ROWS = 122_880  # a row group of DuckDB
_SAMPLE_SECONDS = 0.002
_MEMORY_QUERIES = 5


def main() -> None:
    """Print the memory and both comparisons. The last line is the ratio with the compressed file."""
    from benchmarks.stream_read_kafka_columns import flights

    table = pq.read_table(flights())
    with tempfile.TemporaryDirectory(dir=bench_dir()) as text:
        folder = Path(text)
        ledger = connect(folder / "store").ledger("flights")
        try:
            ledger.append(table)
            files = {codec: _write(table, folder / f"{codec}.arrow", codec) for codec in (None, "lz4")}
            del table
            sizes = {"ledger": sum(segment.size_bytes for segment in ledger.describe().segments)}
            sizes |= {str(codec): path.stat().st_size for codec, path in files.items()}
            print("MB:", {name: round(size / 1e6, 1) for name, size in sizes.items()})
            if _scanned(ledger) != _of_file(files[None]):
                raise ValueError("the results of ledger and file differ")
            ours = partial(_run, partial(_scanned, ledger))
            compare("duckdb_scan_plain", ours, partial(_run, partial(_of_file, files[None])), rounds=ROUNDS)
            command = [sys.executable, "-m", "benchmarks.duckdb_scan", str(folder / "store")]
            subprocess.run(command, check=True)
            compare("duckdb_scan", ours, partial(_run, partial(_of_file, files["lz4"])), rounds=ROUNDS)
        finally:
            ledger.client.ask(StopBroker())
            time.sleep(1)


def _write(table: pa.Table, path: Path, codec: str | None) -> Path:
    options = pa.ipc.IpcWriteOptions(compression=codec)
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema, options=options) as writer:
        writer.write_table(table.combine_chunks(), max_chunksize=_FILE_BATCH_ROWS)
    return path


def _run(query: partial[list[tuple[object, ...]]]) -> None:
    query()


def _scanned(ledger: Ledger) -> list[tuple[object, ...]]:
    rows = ledger.scan(COLUMNS)  # noqa: F841  # DuckDB finds the variable
    return duckdb.sql(QUERY).fetchall()


def _of_file(path: Path) -> list[tuple[object, ...]]:
    rows = ds.dataset(path, format="ipc")  # noqa: F841  # DuckDB finds the variable
    return duckdb.sql(QUERY).fetchall()


def _print_memory(store: str) -> None:
    """Print the peak memory of this process during the query over a scan of all columns, and of two columns."""
    ledger, ended, peak = connect(store).ledger("flights"), threading.Event(), [_memory_kb()]
    start = peak[0]

    def sample() -> None:
        while not ended.wait(_SAMPLE_SECONDS):
            peak[0] = max(peak[0], _memory_kb())

    sampling = threading.Thread(target=sample)
    sampling.start()
    for _ in range(_MEMORY_QUERIES):
        rows = ledger.scan()  # noqa: F841  # DuckDB finds the variable
        duckdb.sql(QUERY).fetchall()
        _scanned(ledger)
    ended.set()
    sampling.join()
    print(f"RssAnon + RssShmem: {peak[0] / 1024:.0f} MiB at most, {start / 1024:.0f} MiB before the first query")


def _memory_kb() -> int:
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return sum(int(line.split()[1]) for line in status.splitlines() if line.startswith(("RssAnon", "RssShmem")))


if __name__ == "__main__":
    if len(sys.argv) > 1:
        _print_memory(sys.argv[1])
    else:
        main()
