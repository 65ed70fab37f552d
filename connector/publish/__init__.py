"""Publication of sealed segments to a Delta table, each exactly once.

`publisher` has the loop over segments. `delta_table` creates, widens and appends to the table.
"""
