"""Platform and disk of the driver, for the report of `ledger doctor --platform`.

Rules
- The platform is a guess from names of environment variables and directories. Only the check of Unity Catalog, the
  table catalogue of Databricks, uses this guess.
- Values of variables are not shown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pyspark_ledger.connector.doctor.diagnosis import Diagnosis
from pyspark_ledger.connector.session.ephemeral_disk import dies_with_its_machine
from pyspark_ledger.ledger.disk import NETWORK_TYPES, mount_of

DATABRICKS = "Databricks"
_RUNTIME = "DATABRICKS_RUNTIME_VERSION"


def platform_name(environ: Mapping[str, str], connect: bool, root: Path = Path("/")) -> str:
    """Return the likely platform. `root` is the root of the file system.

    `connect` says that the program is a client of a Spark server (Spark Connect).
    """
    if _RUNTIME in environ:
        if environ.get("IS_SERVERLESS", "").lower() == "true" or environ[_RUNTIME].startswith("client"):
            return f"{DATABRICKS} serverless"
        return f"{DATABRICKS} standard compute" if connect else f"{DATABRICKS} dedicated compute"
    if any("EMR_SERVERLESS" in name for name in environ):
        return "EMR Serverless"
    if (root / "emr").is_dir() or any(name.startswith(("AWS_EMR", "EMR_")) for name in environ):
        return "EMR"
    return "plain Spark"


def existing(path: Path) -> Path:
    """Return a path, or its nearest parent that exists."""
    # Not `Path.is_dir`, which raises PermissionError for a directory that this user cannot read.
    return next((parent for parent in (path, *path.parents) if os.path.isdir(parent)), Path("/"))  # noqa: PTH112


def check_disk(store: Path, mounts: str) -> Diagnosis:
    """Check the disk of a store's directory. `mounts` is the text of /proc/mounts."""
    check, path = "store's disk", existing(store).resolve()
    point, kind = mount_of(path, mounts)
    found = f"{store} is on {point} ({kind})"
    if kind in NETWORK_TYPES:
        do = "A store there is refused: choose a local disk, or a broker on another host (docs/clusters.md)"
        return Diagnosis(check, "problem", f"{found}, a network file system", do)
    what = dies_with_its_machine(path, mounts)
    if what:
        do = "The store is lost when the machine ends: see 'Durable disks' in docs/clusters.md"
        return Diagnosis(check, "warning", f"{found}, {what}", do)
    return Diagnosis(check, "ok", found)
