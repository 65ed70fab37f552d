"""Ends of batches that Spark has committed, from its progress or from the checkpoints below a directory.

    <checkpoint>/commits/N     written after Spark has committed batch N
    <checkpoint>/offsets/N     version, metadata, then the end of batch N in each source (a line)

Rules
- The checkpoints only tell what is committed. Nothing is acknowledged from them, as a copy of a checkpoint or the
  checkpoint of a replaced query looks the same. A running query or its next start acknowledges.
- Only Spark without admission control stores the subscription in an offset, in its report. There the last batch of
  a run may wait for its acknowledgement. Other offsets are left out.
- A pipeline has a numbered checkpoint for each full refresh of a flow. Only the newest of them counts.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from pyspark_ledger.connector.read.offsets import LedgerOffset, StreamOffset
from pyspark_ledger.connector.read.progress import SourceIdentity, parse_report, parse_source_identity, source_report
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.position import Position

_log = logging.getLogger(__name__)


def committed(source: Mapping[str, Any]) -> list[tuple[SourceIdentity, str, Position]]:
    """Return the end of the committed batch for each cursor, from one source of a progress event."""
    origin = parse_source_identity(source_report(source))
    if origin is None or not origin.subscription:
        return []
    try:
        end = StreamOffset.from_json(parse_report(source.get("endOffset")) or {})
    except LedgerError as unknown:
        _log.warning("a batch of subscription %s is not acknowledged: %s", origin.subscription, unknown)
        return []
    # An initial offset is the start of the first batch, and no batch is committed yet.
    return [] if end.initial else [(origin, name, offset.position) for name, offset in end.ledgers.items()]


def committed_ends(location: str, store_id: str) -> dict[tuple[str, str], LedgerOffset]:
    """Return the newest committed end by ledger and subscription, from all checkpoints below a directory.

    `location` is a path or an URI `file:…`. Raises Refused if this host has no such directory.
    """
    directory = Path(location.removeprefix("file://").removeprefix("file:"))
    if not directory.is_dir():
        raise Refused(
            f"checkpoint {location!r} is not a directory of this host",
            hint="Checkpoints in a bucket cannot be read here. The next run of the query acknowledges its last batch",
        )
    ends: dict[tuple[str, str], LedgerOffset] = {}
    for checkpoint in _checkpoints(directory):
        for line in _last_committed(checkpoint):
            for origin, ledger, position in committed({"endOffset": line}):
                key, end = (ledger, origin.subscription), StreamOffset.from_json(json.loads(line)).ledgers[ledger]
                if origin.store_id == store_id and (key not in ends or ends[key].position < position):
                    ends[key] = end
    return ends


def _checkpoints(directory: Path) -> Iterator[Path]:
    """Yield the directories of checkpoints, of numbered ones only the newest."""
    for commits in directory.rglob("commits"):
        checkpoint = commits.parent
        numbers = [int(other.name) for other in checkpoint.parent.iterdir() if other.name.isdecimal()]
        if not checkpoint.name.isdecimal() or int(checkpoint.name) == max(numbers):
            yield checkpoint


def _last_committed(checkpoint: Path) -> list[str]:
    """Return the offsets of the newest committed batch, a text for each source. Empty without such a batch."""
    batches = [int(path.name) for path in (checkpoint / "commits").iterdir() if path.name.isdecimal()]
    if not batches:
        return []
    with suppress(FileNotFoundError):  # Spark removes old files
        return (checkpoint / "offsets" / str(max(batches))).read_text(encoding="utf-8").splitlines()[2:]
    return []
