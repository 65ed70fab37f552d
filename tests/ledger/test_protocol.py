"""Goal: a message may be the first of its kind for many threads at once. Method: a process where all of them are."""

from __future__ import annotations

import subprocess
import sys

FIRST_TOGETHER = """
import sys, threading
import msgspec
from ledger.broker import acknowledge_stream, append_door, part_writer, producer, wire_errors
from ledger.protocol import DECODERS

sys.setswitchinterval(1e-6)
decoders = [*DECODERS.values(), acknowledge_stream._STATE, append_door._COMMAND, part_writer._STAGED]
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


def test_the_first_messages_of_a_kind_may_come_to_many_threads_at_once() -> None:
    done = subprocess.run([sys.executable, "-c", FIRST_TOGETHER], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 50
