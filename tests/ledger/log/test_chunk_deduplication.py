"""Goal: a chunked message that comes again is delivered once, wherever a crash cut it off. Method: a log in process.

The store is opened again after every number of chunks, over segments of three entries. Readers are `ChunkAssembler`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import LedgerError, Refused
from pyspark_ledger.ledger.log.deduplication import DUPLICATE, AppendSession, EntrySequence, entry_sequence, highest_of
from pyspark_ledger.ledger.log.managed_ledger import ManagedLedger
from pyspark_ledger.ledger.message.batch_decoder import ChunkAssembler
from pyspark_ledger.ledger.metadata.records import KnownSequence
from pyspark_ledger.ledger.position import EARLIEST, LATEST, Position, PositionRange
from pyspark_ledger.ledger.proto.pulsar_messages_pb2 import MessageMetadata
from tests.rigs import entry as entries
from tests.rigs.entry import parsed
from tests.rigs.log import NOW
from tests.rigs.store import Stores

CHUNKS = 5


def chunk(number: int, message: int = 0, count: int = CHUNKS) -> bytes:
    """Chunk `number` of a message; its payload tells the message, the count of chunks and the number."""
    numbers = {"chunk_id": number, "num_chunks_from_msg": count, "total_chunk_msg_size": 2 * count}
    return entries.entry(b"%d%d" % (message, number), sequence_id=message, uuid=f"p-{message}", **numbers)


def plain(message: int) -> bytes:
    return entries.entry(b"%d" % message, sequence_id=message)


def send(log: ManagedLedger, *sent: bytes, session: AppendSession | None = None) -> list[Position]:
    """Append the entries of one session, and return the position of each append."""
    parts = log.append_parts(sent, session or AppendSession())
    return [part.future.result(60) for part in parts]


def delivered(log: ManagedLedger) -> list[bytes]:
    assembler = ChunkAssembler()
    blocks = log.blocks(PositionRange(EARLIEST, LATEST), 300)
    wholes = (assembler.add(entry, where) for block in blocks for where, entry in parsed(block))
    return [bytes(whole.payload) for whole in wholes if whole is not None]


def stored(log: ManagedLedger) -> int:
    return sum(1 for block in log.blocks(PositionRange(EARLIEST, LATEST), 300) for _ in parsed(block))


@pytest.fixture
def stores(store_path: Path) -> Iterator[Stores]:
    with closing(Stores(store_path, deduplication=True)) as stores:
        yield stores


WHOLE = b"1011121314"


@pytest.mark.parametrize("killed", [True, False])
@pytest.mark.parametrize("sent", range(CHUNKS + 1))
def test_message_cut_off_after_any_chunk_is_delivered_once(stores: Stores, sent: int, killed: bool) -> None:
    log = stores.log()
    send(log, plain(0))
    session = AppendSession()
    for number in range(sent):
        send(log, chunk(number, 1), session=session)
    if not killed:
        stores.opened.pop().close()
    log = stores.log()
    known = sent == CHUNKS
    assert log.last_sequence_id("p", 0) == int(known)
    again = send(log, *(chunk(number, 1) for number in range(CHUNKS)))
    assert (set(again) == {DUPLICATE}) is known
    send(log, plain(2))
    assert delivered(log) == [b"0", WHOLE, b"2"]
    assert stored(log) == 2 + CHUNKS + sent * (not known)


@pytest.mark.parametrize("sent", range(1, CHUNKS))
def test_message_repeated_with_other_chunks_is_delivered_once(stores: Stores, sent: int) -> None:
    log = stores.log()
    send(log, *(chunk(number, 1) for number in range(sent)))
    log = stores.log()
    send(log, *(chunk(number, 1, 2) for number in range(2)))
    assert delivered(log) == [b"1011"]
    assert send(log, *(chunk(number, 1, 3) for number in range(3))) == [DUPLICATE] * 3
    assert delivered(log) == [b"1011"]


def test_whole_message_repeated_in_one_session_is_a_duplicate(stores: Stores) -> None:
    log, session = stores.log(), AppendSession()
    whole = [chunk(number, 1) for number in range(CHUNKS)]
    send(log, *whole, session=session)
    assert send(log, *whole, session=session) == [DUPLICATE] * CHUNKS
    assert [send(log, one, session=session) for one in whole] == [[DUPLICATE]] * CHUNKS
    assert stored(log) == CHUNKS


def test_chunk_out_of_order_is_refused_and_changes_nothing(stores: Stores) -> None:
    log, session = stores.log(), AppendSession()
    with pytest.raises(Refused, match="is chunk 1 of 5 of message 1 of producer 'p', expected a first chunk"):
        send(log, chunk(1, 1), session=session)
    send(log, chunk(0, 1), session=session)
    with pytest.raises(
        Refused, match=r"is chunk 2 of 5 of message 1 of producer 'p', expected chunk 1 of message 1[.] Send"
    ):
        send(log, chunk(2, 1), session=session)
    with pytest.raises(Refused, match=r"entry 2 of .* expected chunk 3 of message 1"):
        send(log, chunk(1, 1), chunk(2, 1), chunk(4, 1), session=session)
    with pytest.raises(Refused, match=r"is chunk 1 of 5 of message 2 .* expected chunk 1 of message 1"):
        send(log, chunk(1, 2), session=session)
    send(log, *(chunk(number, 1) for number in range(1, CHUNKS)), session=session)
    assert delivered(log) == [WHOLE]
    assert stored(log) == CHUNKS


def test_message_left_for_another_one_is_not_continued(stores: Stores) -> None:
    log, session = stores.log(), AppendSession()
    send(log, chunk(0, 1), chunk(1, 1), plain(2), session=session)
    with pytest.raises(Refused, match="expected a first chunk"):
        send(log, chunk(2, 1), session=session)
    assert delivered(log) == [b"2"]


def test_two_sessions_of_a_name_never_mix_their_chunks(stores: Stores) -> None:
    log, old, new = stores.log(), AppendSession(), AppendSession()
    send(log, chunk(0, 1), session=old)
    send(log, chunk(0, 1, 2), session=new)
    with pytest.raises(Refused, match="expected chunk 1 of message 1 from another producer of that name"):
        send(log, chunk(1, 1), session=old)
    send(log, chunk(1, 1, 2), session=new)
    assert delivered(log) == [b"1011"]


def test_chunk_that_the_disk_fails_is_not_followed_by_others(stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    log, session = stores.log(), AppendSession()
    send(log, chunk(0, 1), session=session)

    def failing(_: int) -> None:
        raise OSError(5, "no disk")

    with monkeypatch.context() as patch:
        patch.setattr(disk, "sync_data", failing)
        with pytest.raises(LedgerError):
            send(log, chunk(1, 1), session=session)
    with pytest.raises(LedgerError, match="an earlier append of the same producer failed"):
        send(log, chunk(2, 1), session=session)
    with pytest.raises(Refused, match="expected a first chunk"):
        send(log, chunk(2, 1))
    assert log.last_sequence_id("p", 0) == -1
    send(log, *(chunk(number, 1) for number in range(CHUNKS)))
    assert delivered(log) == [WHOLE]


def test_only_the_last_chunk_makes_an_id_known() -> None:
    def sequence(number: int, count: int) -> EntrySequence | None:
        fields = {"sequence_id": 4, "chunk_id": number, "num_chunks_from_msg": count}
        return entry_sequence(MessageMetadata(producer_name="p", publish_time=1, **fields), "entry 0")

    first, last = sequence(0, 2), sequence(1, 2)
    assert (first, last) == (EntrySequence("p", 4, 4, 0, 2), EntrySequence("p", 4, 4, 1, 2))
    assert highest_of([first], NOW) == []
    assert highest_of([first, last], NOW) == [KnownSequence("p", 4, NOW)]
    for number, count in ((2, 2), (-1, 2)):
        with pytest.raises(Refused, match=f"entry 0 has chunk id {number}, expected 0 to 1"):
            sequence(number, count)
