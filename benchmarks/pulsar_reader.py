"""Time of Pulsar's own offload reader over the project's, for every entry of the same objects on the same server.

Pulsar's reader runs in Java, after a warm-up round. It reads 100 entries at a time, like a broker. The project's reader
is the reader of Spark's tasks, without the decoding of rows. It prefetches byte ranges and walks from frame to frame.
Each entry is a batch of messages with 128 KiB. The objects have a GiB, or `BUCKET_MESSAGES` messages of a kilobyte
each.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.bucket_objects import BUCKET, Bucket, bucket
from benchmarks.harness import compare
from pyspark_ledger.offload.bucket.catalogue import Segment
from pyspark_ledger.offload.bucket.frames import stream_frames
from pyspark_ledger.offload.bucket.topic_log import segment_ranges
from pyspark_ledger.offload.storage.prefetch import ObjectRange, RangePrefetcher
from streaming_examples.s3_server import ACCESS_KEY, SECRET_KEY

ROOT = Path(__file__).parent.parent
PULSAR = ROOT / "build" / "pulsar"
MESSAGES, MESSAGE_BYTES = int(os.environ.get("BUCKET_MESSAGES") or 1_100_000), 1000
ROUNDS = 64


class PulsarReader:
    """Java process that reads everything once per line of input."""

    def __init__(self, there: Bucket, segments: Sequence[Segment]) -> None:
        subprocess.run([ROOT / "tools" / "pulsar" / "fetch.sh"], check=True)
        keys = [f"{segment.data_name[:36]}:{segment.ledger_id}" for segment in segments]
        classpath = f"{PULSAR}/classes:{PULSAR}/nar:{PULSAR}/nar/META-INF/bundled-dependencies/*:{PULSAR}/lib/*"
        endpoint = there.server.endpoint
        command = [
            shutil.which("java") or "java", "-Xmx1g", "-Djclouds.regions=us-east-1",
            f"-Djclouds.region.us-east-1.endpoint={endpoint}", "-Dlog4j2.level=ERROR", "-cp", classpath,
            "ReadOffloaded", endpoint, BUCKET, str(ROUNDS), *keys,
        ]  # fmt: skip
        keys_of_server = {"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, **keys_of_server},
        )  # fmt: skip
        self.entries = 0

    def read(self) -> float:
        """Return the seconds of one round."""
        process = self._process
        if process.stdin is None or process.stdout is None:
            raise RuntimeError("the reader has no pipes")
        process.stdin.write("\n")
        process.stdin.flush()
        while True:
            line = process.stdout.readline()
            if not line:
                message = f"the reader ended with status {process.wait()}"
                raise RuntimeError(message)
            words = line.split()
            if len(words) == 3 and all(word.isdecimal() for word in words):
                self.entries = int(words[1])
                return int(words[0]) / 1e9

    def stop(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


def read_here(there: Bucket, segments: Sequence[Segment]) -> int:
    """Read every entry and return their number."""
    spans = [span for segment in segments for span in segment_ranges(segment)]
    ranges = [ObjectRange(span.data_name, span.offset, span.end_offset) for span in spans]
    entries = 0
    with RangePrefetcher(there.objects, ranges) as ahead:
        for number, span in enumerate(spans):
            for _ in stream_frames(ahead.pieces(number), span, span.data_name):
                entries += 1
    return entries


def main() -> None:
    """Print the ratio."""
    with bucket() as there:
        segments = there.put_messages("messages", MESSAGES, MESSAGE_BYTES, "none")
        size = sum(segment.index.data_bytes for segment in segments)
        reader = PulsarReader(there, segments)
        try:
            reader.read()
            entries = read_here(there, segments)
            if reader.entries != entries:
                message = f"Pulsar read {reader.entries} entries, here {entries} were read"
                raise RuntimeError(message)
            print(f"{size / 2**30:.2f} GiB in {entries} entries")
            compare("pulsar_reader", lambda: read_here(there, segments) and None, reader.read, work_bytes=size)
        finally:
            reader.stop()


if __name__ == "__main__":
    main()
