"""Checks that Spark can run the source here, and that its store is usable.

`checks` runs them, `worker_probe` runs in the interpreter that Spark would start, `tested_versions` lists the tested
versions. `platform` reports what a platform forbids: `platform_probe` asks the driver's host, `spark_probe` a task.
"""
