"""Factory of object stores: selects the class by the address."""

from __future__ import annotations

import os
from collections.abc import Callable

from pyspark_ledger.ledger.objects.address import ObjectAddress
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.objects.s3_options import S3Options


def open_object_store(
    address: str | os.PathLike[str],
    options: S3Options | None = None,
    allocate: Callable[[int], memoryview] | None = None,
) -> ObjectStore:
    """Return the store at `s3://bucket[/prefix]`, `file:///path` or a directory. No request is sent yet.

    `allocate` returns the memory for a range that is fetched from S3.
    """
    parsed = ObjectAddress.parse(address)
    # Imported here, because most processes open one kind of store or none, and start faster without these modules.
    if parsed.directory is not None:
        from pyspark_ledger.ledger.objects.directory import DirectoryStore

        return DirectoryStore(parsed.directory)
    from pyspark_ledger.ledger.objects.s3 import S3Store

    return S3Store(parsed, options or S3Options(), allocate)
