"""Visibility of a log's entries: which entries transactions hide, and which chunks form a message. Pure functions.

The page docs/concepts.md explains the words log, entry and chunk.

Rules
- Entries of an aborted transaction are hidden.
- A transaction is open if the bucket has neither its commit nor its abort. The log ends before the first entry of an
  open transaction, as for Pulsar's own readers.
- The position of a chunked message is the position of its last chunk.
- If the first chunk of a message is repeated, the message starts again. Any other repeated chunk is ignored.
- A message with a missing chunk is not delivered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark_ledger.ledger.message.run_marker import RunId
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.offload.bucket.entry_heads import Chunk, EntryHeads


@dataclass(slots=True)
class Visibility:
    """Hidden entries and chunked messages of a log.

    `open_from` is the first entry of an open transaction. `messages` maps the position of a message's last chunk to all
    its chunks.
    """

    hidden: dict[Position, RunId] = field(default_factory=dict)
    open_from: Position | None = None
    open_transaction: RunId | None = None
    messages: dict[Position, tuple[Chunk, ...]] = field(default_factory=dict)


def visibility_of(heads: Iterable[EntryHeads]) -> Visibility:
    """Return the visibility of a whole log. `heads` describe the entries of each segment, in the order of segments."""
    log = list(heads)
    outcomes = {run: committed for segment in log for run, committed in segment.outcomes}
    visibility = Visibility()
    for segment in log:
        for position, run in segment.transactional:
            committed = outcomes.get(run)
            if committed is None and visibility.open_from is None:
                visibility.open_from, visibility.open_transaction = position, run
            if committed is False:
                visibility.hidden[position] = run
    visibility.messages = _assemble(
        chunk for segment in log for chunk in segment.chunks if chunk.position not in visibility.hidden
    )
    return visibility


def _assemble(chunks: Iterable[Chunk]) -> dict[Position, tuple[Chunk, ...]]:
    """Return the chunks of each complete message, by the position of the last chunk."""
    unfinished: dict[tuple[str, str], list[Chunk]] = {}
    messages: dict[Position, tuple[Chunk, ...]] = {}
    for chunk in chunks:
        message_chunks = [] if chunk.number == 0 else unfinished.get(chunk.message, [])
        if chunk.number < len(message_chunks) or (chunk.number and not message_chunks):
            continue
        if chunk.number > len(message_chunks):
            unfinished.pop(chunk.message, None)
            continue
        message_chunks.append(chunk)
        unfinished[chunk.message] = message_chunks
        if chunk.number == chunk.chunks - 1:
            messages[chunk.position] = tuple(unfinished.pop(chunk.message))
    return messages
