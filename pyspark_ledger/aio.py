"""The Python API for asyncio: the same names, arguments and results as `pyspark_ledger`. See docs/async.md.

from pyspark_ledger.aio import connect
"""

from pyspark_ledger.ledger.aio.batches import Batches, DeliveredBatch
from pyspark_ledger.ledger.aio.cursor import Cursor, JoinedCursor
from pyspark_ledger.ledger.aio.ledger import Ledger, PartitionedLedger
from pyspark_ledger.ledger.aio.producer import Producer
from pyspark_ledger.ledger.aio.store import LedgerStore, connect
from pyspark_ledger.ledger.consumer.batch import Batch

__all__ = [
    "Batch",
    "Batches",
    "Cursor",
    "DeliveredBatch",
    "JoinedCursor",
    "Ledger",
    "LedgerStore",
    "PartitionedLedger",
    "Producer",
    "connect",
]
