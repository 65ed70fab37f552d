"""Shared setup of the publishing benchmarks: a ledger, its published table, and plain Delta tables of the same rows.

Rule: Spark writes a plain table from Parquet files with exactly the columns of the published table.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession

from benchmarks.raw_disk import bench_dir
from benchmarks.rows import ENTRY_BYTES, create, entry
from pyspark_ledger.connector.publish.publisher import Publisher
from pyspark_ledger.connector.publish.segment_rows import PUBLISH_DATE
from pyspark_ledger.ledger.api.ledger import Ledger
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.protocol.actions import Empty

MIB = 1024 * 1024
ROW_BYTES = 120
LEDGER = "published"
ROOT = Path(__file__).parent.parent


@dataclass
class Tables:
    """Sealed ledger, and a folder for tables."""

    spark: SparkSession
    ledger: Ledger
    store: Path
    folder: Path
    serial: Iterator[int]
    version: int
    entries: int = 0

    def fill(self, size: int) -> None:
        """Append about `size` bytes of new rows, and seal them."""
        with self.ledger.client.producer(self.ledger.name) as producer:
            for _ in range(max(size // ENTRY_BYTES, 1)):
                producer.append(*entry(self.entries, ROW_BYTES, self.version))
                self.entries += 1
        self.ledger.seal()

    def fresh(self) -> Path:
        """Return a path without a table. The table before is deleted."""
        number = next(self.serial)
        shutil.rmtree(self.folder / f"t{number - 1}", ignore_errors=True)
        return self.folder / f"t{number}"

    def publisher(self, table: Path) -> Publisher:
        """Return a new publisher."""
        return Publisher(self.spark, LEDGER, str(table), {"store": str(self.store)})

    def write_plain(self, rows: DataFrame, table: Path) -> None:
        """Write rows in one commit, partitioned like the published table."""
        rows.write.format("delta").partitionBy(PUBLISH_DATE).save(str(table))


@contextmanager
def tables(size: int) -> Iterator[Tables]:
    """Yield a ledger with about `size` bytes in a sealed segment, and a session with Delta."""
    from pyspark_ledger import register, session

    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    with tempfile.TemporaryDirectory(dir=bench_dir()) as name:
        folder, store = Path(name), Path(name) / "store"
        api = connect(store)
        conf = {"spark.driver.memory": "3g", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
        spark = session("bench", delta=True, **{"spark.master": "local[2]", "spark.sql.shuffle.partitions": 2, **conf})
        try:
            register(spark)
            version = create(api.client, LEDGER)
            ledger = api.ledger(LEDGER)
            if not isinstance(ledger, Ledger):
                raise TypeError(ledger)
            bench = Tables(spark, ledger, store, folder, count(), version)
            bench.fill(size)
            yield bench
        finally:
            spark.stop()
            api.client.call("shutdown", Empty(), deadline_ms=0)


def files_of(table: Path) -> int:
    """Return the number of files of a table, for information."""
    return len(list(table.rglob("*.parquet")))
