"""Goal: a message may be the first of its kind for many threads at once, and every name in one has a limit.

Method: a process where all of them are; a walk through the types of all requests.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest
from msgspec import inspect

from pyspark_ledger.ledger.protocol.actions import REQUESTS, PutCommand

FIRST_TOGETHER = """
import sys, threading
import msgspec
import pyspark_ledger.ledger.client.acknowledge as acknowledge_stream
import pyspark_ledger.ledger.broker.append_socket as append_door
import pyspark_ledger.ledger.client.part_stream as part_stream
import pyspark_ledger.ledger.client.producer as producer
import pyspark_ledger.ledger.transport.errors as wire_errors
from pyspark_ledger.ledger.protocol.actions import DECODERS

sys.setswitchinterval(1e-6)
decoders = [*DECODERS.values(), acknowledge_stream._STATE, append_door._COMMAND, part_stream._STAGED]
decoders += [producer._APPENDED, wire_errors._ERROR]
for decoder in decoders:
    start = threading.Barrier(32)

    def decode():
        start.wait()
        try:
            decoder.decode(b"{}" if isinstance(decoder, msgspec.json.Decoder) else b"\\x80")
        except msgspec.ValidationError:
            pass

    threads = [threading.Thread(target=decode) for _ in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
print(len(decoders))
"""


@pytest.mark.thorough
def test_the_first_messages_of_a_kind_may_come_to_many_threads_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_TOGETHER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50


def unbounded(kind: inspect.Type, path: str = "") -> Iterator[str]:
    """The texts in a type that have no limit."""
    if isinstance(kind, inspect.StrType) and kind.max_length is None:
        yield path
    elif isinstance(kind, inspect.StructType):
        for field in kind.fields:
            yield from unbounded(field.type, f"{kind.cls.__name__}.{field.name}")
    elif isinstance(kind, inspect.UnionType | inspect.TupleType):
        for inner in kind.types if isinstance(kind, inspect.UnionType) else kind.item_types:
            yield from unbounded(inner, path)
    elif isinstance(kind, inspect.ListType):
        yield from unbounded(kind.item_type, path)
    elif isinstance(kind, inspect.DictType):
        yield from unbounded(kind.key_type, path)
        yield from unbounded(kind.value_type, f"{path} value")


def test_every_text_of_a_request_is_measured_before_it_is_read() -> None:
    """Only values of properties have no limit of their own: the request's is theirs."""
    requests = [*REQUESTS.values(), PutCommand]
    found = {path for request in requests for path in unbounded(inspect.type_info(request))}
    assert found == {"CreateLedger.properties value", "ChangeProperties.values value", "CursorProperties.values value"}
