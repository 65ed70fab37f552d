"""Goal: with deduplication, messages that are sent again after a kill of the broker are stored once and in order.

Method: SIGKILL to the broker, repeatedly, while a producer sends batches, single messages or chunks. After each restart
the producer sends the unacknowledged messages again.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.message.batch_decoder import ChunkAssembler, decode_messages
from pyspark_ledger.ledger.position import EARLIEST, PositionRange
from pyspark_ledger.ledger.protocol.actions import AskEnd
from pyspark_ledger.ledger.protocol.reads import ReadRequest
from tests.rigs.entry import parsed

pytestmark = pytest.mark.fault

KILLS, MESSAGES = 12, 3000


def numbers(client: Client, ledger: str) -> list[int]:
    found, assembler = [], ChunkAssembler()
    request = ReadRequest(ledger, PositionRange(EARLIEST, client.ask(AskEnd(ledger)).end))
    for block in client.read_blocks(request):
        for position, entry in parsed(block):
            whole = assembler.add(entry, position)
            found += [] if whole is None else [int(bytes(m.value or b"")) for m in decode_messages(whole, position)]
    return found


@pytest.mark.parametrize(("batched", "digits"), [(True, 1), (False, 1), (False, 50)])
def test_messages_sent_again_are_there_once(
    victim: Callable[..., object], dice: random.Random, batched: bool, digits: int
) -> None:
    client = victim.client(deadline_ms=60_000)  # type: ignore[attr-defined]  # a fixture of this folder
    log = LedgerStore(client).create("log", deduplication=True)
    kill_at = sorted(dice.sample(range(1, MESSAGES), KILLS))
    acknowledged = 0
    delay = 1 if batched else 0
    while acknowledged < MESSAGES:
        producer = log.producer("p", batching_max_messages=7, batching_max_publish_delay_ms=delay, chunk_max_bytes=9)
        assert producer.last_sequence_id >= acknowledged - 1, "an acknowledged message is known"
        first = producer.last_sequence_id + 1 if batched else acknowledged
        sent = []
        with suppress(LedgerError):
            for number in range(first, MESSAGES):
                if kill_at and number == kill_at[0]:
                    kill_at.pop(0)
                    victim.kill_broker()  # type: ignore[attr-defined]  # see above
                sent.append(producer.send(b"%0*d" % (digits, number), sequence_id=number))
        with suppress(LedgerError):
            producer.close()
        acknowledged = first + next((i for i, one in enumerate(sent) if one.exception(60) is not None), len(sent))
    assert not kill_at
    assert numbers(client, "log") == list(range(MESSAGES))
