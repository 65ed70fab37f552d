"""An object store from its address: the one place that knows which class goes with which spelling."""

from __future__ import annotations

import os

from offload.directory_store import DirectoryStore
from offload.object_address import ObjectAddress
from offload.object_store import ObjectStore
from offload.s3_options import S3Options
from offload.s3_store import S3Store


def open_object_store(address: str | os.PathLike[str], options: S3Options | None = None) -> ObjectStore:
    """The store at `s3://bucket[/prefix]`, `file:///path` or a directory. Nothing is asked of it yet."""
    parsed = ObjectAddress.parse(address)
    if parsed.directory is not None:
        return DirectoryStore(parsed.directory)
    return S3Store(parsed, options or S3Options())
