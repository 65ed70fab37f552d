"""`benchmarks.read_kafka` with rows of 1 KiB."""

from __future__ import annotations

from benchmarks.read_kafka import report


def main() -> None:
    """Print the comparison. The last line is the ratio."""
    report("stream_read_kafka_1k", 1024)


if __name__ == "__main__":
    main()
