"""Whether a directory outlives its machine: what a cluster deletes with itself takes a store with it.

Rule: a guess from the path and the file system, so it is a warning and never a refusal. Pure: mounts are an argument.
"""

from __future__ import annotations

from pathlib import Path

# Mount points and directories of platforms, and what they are there.
_OF_PLATFORMS = {
    "/local_disk0": "a disk of this Databricks cluster",
    "/databricks/driver": "the driver's own disk of this Databricks cluster",
    "/mnt/tmp": "the instance store of this EMR node",
    "/mnt/yarn": "the instance store of this EMR node",
    "/mnt1": "the instance store of this EMR node",
    "/tmp": "a directory for temporary files",  # noqa: S108  # it is looked for, not used
}
_OF_KINDS = {"tmpfs": "memory", "ramfs": "memory", "overlay": "the layer of a container"}


def dies_with_its_machine(path: Path, mounts: str) -> str:
    """What the directory is on, if that goes with the cluster, else empty. `mounts` is the text of /proc/mounts."""
    for known, what in _OF_PLATFORMS.items():
        if path.is_relative_to(known):
            return what
    points = [line.split()[1:3] for line in mounts.splitlines() if len(line.split()) > 2]
    holding = [(len(point), kind) for point, kind in points if path.is_relative_to(point)]
    # The last of equals: what was mounted over another hides it.
    kind = max(reversed(holding), key=lambda held: held[0], default=(0, ""))[1]
    return _OF_KINDS.get(kind, "")
