"""Counters and histograms. The parts of the broker update them, and `ledger.broker.metrics` reads them."""
