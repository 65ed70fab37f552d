"""Spark's Python data source for ledgers, `format("ledger")`. docs/concepts.md explains the words of this package."""
