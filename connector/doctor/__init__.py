"""Checks of what keeps Spark from running the source here, and of the store that it would use.

`checks` runs them, `worker_probe` runs in the interpreter that Spark would start, `tested_versions` says what is
tested.
"""
