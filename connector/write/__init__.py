"""Sinks: batch and streaming writes, exactly-once commits, acknowledgements.

A task writes its rows to *staged parts*, files that readers do not see. `commit` makes the parts of all tasks visible
at once.
"""
