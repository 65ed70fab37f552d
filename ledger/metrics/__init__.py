"""Counters and histograms that the broker's parts count into, and that `ledger.broker.metrics` reads."""
