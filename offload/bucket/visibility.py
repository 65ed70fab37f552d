"""Which entries a reader may see: what transactions and chunks make of a log. Pure.

Rules
- Entries of an aborted transaction are hidden. One that is still open where the bucket ends ends the read: nothing from
  its first entry on is seen, as Pulsar's own readers stop there.
- A chunked message stands where its last chunk stands. A first chunk begins a message anew, a chunk that was there
  already is passed over, and a message of which a chunk is missing is never delivered.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from pyspark_ledger.ledger.message.run_marker import RunId
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.offload.bucket.entry_heads import Chunk, EntryHeads


@dataclass(slots=True)
class Visibility:
    """What is known of a log. `open_from` is the first entry of the first transaction without an outcome."""

    hidden: dict[Position, RunId] = field(default_factory=dict)
    open_from: Position | None = None
    open_transaction: RunId | None = None
    messages: dict[Position, tuple[Chunk, ...]] = field(default_factory=dict)


def visibility_of(heads: Iterable[EntryHeads]) -> Visibility:
    """The visibility of a whole log, whose segments come in order."""
    log = list(heads)
    outcomes = {run: committed for one in log for run, committed in one.outcomes}
    seen = Visibility()
    for one in log:
        for position, run in one.transactional:
            committed = outcomes.get(run)
            if committed is None and seen.open_from is None:
                seen.open_from, seen.open_transaction = position, run
            if committed is False:
                seen.hidden[position] = run
    seen.messages = _assembled(chunk for one in log for chunk in one.chunks if chunk.position not in seen.hidden)
    return seen


def _assembled(chunks: Iterable[Chunk]) -> dict[Position, tuple[Chunk, ...]]:
    """The chunks of each whole message, by the position of the last."""
    begun: dict[tuple[str, str], list[Chunk]] = {}
    whole: dict[Position, tuple[Chunk, ...]] = {}
    for chunk in chunks:
        known = [] if chunk.number == 0 else begun.get(chunk.message, [])
        if chunk.number < len(known) or (chunk.number and not known):
            continue
        if chunk.number > len(known):
            begun.pop(chunk.message, None)
            continue
        known.append(chunk)
        begun[chunk.message] = known
        if chunk.number == chunk.chunks - 1:
            whole[chunk.position] = tuple(begun.pop(chunk.message))
    return whole
