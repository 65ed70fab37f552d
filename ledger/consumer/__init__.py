"""Loops over the rows of ledgers, in batches of limited size, which wait for new rows.

Words of this package, beside those of docs/concepts.md
- A *batch* has rows of one ledger that follow each other, and the position after them.
- A *source* reads the batches of one loop, for example from a position on.
"""
