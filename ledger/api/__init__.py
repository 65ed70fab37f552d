"""Python API without Spark: stores, ledgers and cursors. `pyspark_ledger` has the names that a user imports."""
