"""`stream_read` without mapping: every byte over Flight, against a bare Flight server.

That server feeds the same Python source: it answers with one prebuilt batch over and over, without a file, a
checksum or Python in between.
"""

from __future__ import annotations

from benchmarks.stream_read import report


def main() -> None:
    """Fetched reads against the source that fetches from the bare server."""
    report("stream_read_flight", mapping="off", with_server=True)


if __name__ == "__main__":
    main()
