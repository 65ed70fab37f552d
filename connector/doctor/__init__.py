"""Checks whether Spark can run the data source on this host, and whether its store is usable.

`checks` runs the checks, `worker_probe` runs in the interpreter that Spark would start, `tested_versions` lists the
tested versions. `platform` reports what a platform forbids.
"""
