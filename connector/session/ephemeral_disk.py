"""Disks that are deleted with their cluster: a guess from paths and file systems. Needs only the standard library."""

from __future__ import annotations

from pathlib import Path

# Ephemeral mount points and directories of platforms, and their descriptions.
_OF_PLATFORMS = {
    "/local_disk0": "a disk of this Databricks cluster",
    "/databricks/driver": "the driver's own disk of this Databricks cluster",
    "/mnt/tmp": "the instance store of this EMR node",
    "/mnt/yarn": "the instance store of this EMR node",
    "/mnt1": "the instance store of this EMR node",
    "/tmp": "a directory for temporary files",  # noqa: S108  # only compared with a path
}
_OF_KINDS = {"tmpfs": "memory", "ramfs": "memory", "overlay": "the layer of a container"}


def dies_with_its_machine(path: Path, mounts: str) -> str:
    """Return the kind of the disk in words if the disk is deleted with the cluster. Otherwise return an empty text.

    `mounts` is the text of /proc/mounts. The result is a guess from the path and the file system. So callers may warn,
    but must refuse nothing.
    """
    for known, what in _OF_PLATFORMS.items():
        if path.is_relative_to(known):
            return what
    points = [line.split()[1:3] for line in mounts.splitlines() if len(line.split()) > 2]
    holding = [(len(point), kind) for point, kind in points if path.is_relative_to(point)]
    # If several file systems are mounted at one place, the last mount hides the earlier mounts. So the last one counts.
    kind = max(reversed(holding), key=lambda held: held[0], default=(0, ""))[1]
    return _OF_KINDS.get(kind, "")
