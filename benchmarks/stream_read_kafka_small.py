"""`benchmarks.read_kafka` with rows of 120 bytes."""

from __future__ import annotations

from benchmarks.read_kafka import report


def main() -> None:
    """Print the comparison. The last line is the ratio."""
    report("stream_read_kafka_small", 120)


if __name__ == "__main__":
    main()
