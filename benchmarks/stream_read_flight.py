"""Benchmark `stream_read` without mapping: the broker sends every byte over Flight, against a bare Flight server.

The base's Python source reads from the bare server. This server sends one prebuilt batch repeatedly, without files,
checksums or Python code between batches.
"""

from __future__ import annotations

from benchmarks.stream_read import report


def main() -> None:
    """Compare fetched reads with the source that fetches from the bare server."""
    report("stream_read_flight", mapping="off", with_server=True)


if __name__ == "__main__":
    main()
