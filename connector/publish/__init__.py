"""Sealed segments into a Delta table, each once.

`publisher` is the loop over commits and knows how far the table is; `delta_table` makes, widens and appends.
"""
