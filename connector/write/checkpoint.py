"""Checkpoint of a streaming query, read by the sink: the offsets that Spark has recorded for a batch.

    <checkpoint>/metadata         JSON with the id of the query
    <checkpoint>/offsets/N        version, metadata of the batch (one line), then the offsets of each source (a line)

Spark writes `offsets/N` before batch N runs. So the committer of batch N can read it on the driver's host.

Rules
- The digest of a batch's offsets covers the lines of the sources only. Reason: the line of metadata has the time at
  which Spark planned the batch. Exception: it leaves out the report that a ledger's offset has on Spark 4.0 and 4.1,
  and the place of its store. Reason: two copies of a checkpoint that plan the same rows have different reports, and may
  reach the store at different places. Otherwise the content of a line is not interpreted, so every version of the file
  is readable.
- Offsets are unknown ("") if this process cannot read the files, or if `metadata` names another query. Unknown
  offsets are no error.
- A place is a path of this host, `file:`, `dbfs:` (mounted at `/dbfs`), `s3:` or `s3a:`. Spark and this process resolve
  a relative path against the same directory. The id in `metadata` shows that this is the query's checkpoint.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark_ledger.ledger.errors import LedgerError

if TYPE_CHECKING:
    from pyspark_ledger.ledger.objects.s3_options import S3Options

Fetch = Callable[[str], bytes | None]
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:")
_S3_WAIT_MS = 5_000  # a bucket that Spark reaches answers sooner
_CREDENTIALS = {
    "AWS_ACCESS_KEY_ID",
    "AWS_PROFILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
}
_BYTES_MAX = 64 * 1024 * 1024
_log = logging.getLogger(__name__)


class Checkpoint:
    """Checkpoint at `location`, the option `checkpointLocation` of the query. An empty location is unknown."""

    def __init__(self, location: str, s3: S3Options | None = None) -> None:
        self._fetch = _fetcher(location, s3)

    def query(self) -> str:
        """Return the id of the query, or "" if it is unknown."""
        found = self._fetch("metadata")
        if found is None:
            return ""
        try:
            stated = json.loads(found)
        except ValueError:
            return ""
        return str(stated.get("id", "")) if isinstance(stated, dict) else ""

    def offsets(self, batch: int) -> str:
        """Return the digest of a batch's offsets, or "" if they are unknown."""
        found = None if batch < 0 else self._fetch(f"offsets/{batch}")
        return "" if found is None else digest_of(found)


_NOT_OF_ROWS = frozenset({"report", "store"})  # the incarnations tell the ledgers of two stores apart


def digest_of(offsets: bytes) -> str:
    """Return the digest of a file of offsets, or "" for a file without sources."""
    version, _, rest = offsets.partition(b"\n")
    _, _, sources = rest.partition(b"\n")
    if not version.startswith(b"v") or not sources.strip():
        return ""
    lines = b"\n".join(map(_only_rows, sources.rstrip(b"\n").split(b"\n")))
    return hashlib.blake2b(lines, digest_size=16).hexdigest()


def _only_rows(line: bytes) -> bytes:
    """Return the offset of a source without the members on which the rows of a batch do not depend."""
    with suppress(ValueError):
        offset = json.loads(line)
        if isinstance(offset, dict) and "ledgers" in offset and offset.keys() & _NOT_OF_ROWS:
            return json.dumps({name: value for name, value in offset.items() if name not in _NOT_OF_ROWS}).encode()
    return line


def _fetcher(location: str, s3: S3Options | None) -> Fetch:
    """Return a function that returns the content of a file of the checkpoint, and None for an unreadable file."""
    scheme = _SCHEME.match(location)
    kind = scheme.group()[:-1].lower() if scheme else ""
    if not location or kind not in ("", "file", "dbfs", "s3", "s3a"):
        return lambda _: None
    if kind in ("s3", "s3a"):
        if not _has_credentials(s3):
            return lambda _: None
        return _s3_fetcher(location.split(":", 1)[1], s3)
    path = re.sub(r"^//+", "/", location[len(kind) + 1 :] if kind else location)
    folder = Path("/dbfs", path.lstrip("/")) if kind == "dbfs" else Path(path)

    def fetch(name: str) -> bytes | None:
        with suppress(OSError, ValueError):
            return (folder / name).read_bytes()
        return None

    return fetch


def _has_credentials(s3: S3Options | None) -> bool:
    """Return whether options, environment or files name credentials. Reason: the search of a host's role takes seconds.

    Spark may reach the bucket with credentials of Hadoop's configuration, which this process does not know.
    """
    named = s3 is not None and bool(s3.profile or s3.credential_provider)
    return named or bool(_CREDENTIALS & os.environ.keys()) or Path("~/.aws/credentials").expanduser().exists()


def _s3_fetcher(rest: str, s3: S3Options | None) -> Fetch:
    from dataclasses import replace

    from pyspark_ledger.ledger.objects.factory import open_object_store
    from pyspark_ledger.ledger.objects.s3_options import S3Options

    options = replace(s3 or S3Options(), connect_timeout_ms=_S3_WAIT_MS, read_timeout_ms=_S3_WAIT_MS, attempts=1)

    def fetch(name: str) -> bytes | None:
        try:
            return open_object_store(f"s3:{rest.rstrip('/')}", options).get(name, _BYTES_MAX).data
        except (LedgerError, ImportError) as error:
            _log.info("offsets of the checkpoint s3:%s are unknown: %s", rest, error)
            return None

    return fetch
