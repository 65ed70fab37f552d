"""Publication of sealed segments to a Delta table, each exactly once.

A segment is one file of a ledger. A sealed segment never changes. `publisher` has the loop over segments. `delta_table`
creates the table, adds columns, and appends rows.
"""
