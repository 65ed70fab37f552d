"""Spark's Python data source over managed ledgers, format `ledger`."""
