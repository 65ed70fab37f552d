"""Where the files of credentials are in this process: at their path, or among those that Spark ships to its executors.

Rule: a file at the path goes before. `spark.files`, `sc.addFile` and `pyspark_ledger.serve` ship files; on an executor
they have the same name in a directory of Spark's.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ledger.broker.credentials import Credentials


def on_this_host(credentials: Credentials) -> Credentials:
    """The same credentials, with the paths that this process can read."""
    return credentials.with_files(file_on_this_host)


def file_on_this_host(path: str) -> str:
    """The path of a file that this process can read; the given one, where there is none."""
    if Path(path).exists():
        return path
    try:
        from pyspark import SparkFiles

        shipped = SparkFiles.get(Path(path).name)
    except Exception:  # noqa: BLE001  # no Spark here, or none that runs: then the error names the path that was given
        return path
    return shipped if Path(shipped).exists() else path
