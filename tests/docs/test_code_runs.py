"""Goal: every line of code in README and docs runs. Method: each page's Python is one program, run as its reader would.

A program has a directory, an interpreter and, when it asks for one, a JVM of its own. Shell lines are indented and
begin with `make`: each names a target that there is.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from streaming_examples.broker_control import stop_broker_of

ROOT = Path(__file__).resolve().parents[2]
# What the reader sees, and would miss if the page were wrong.
SAYS = {
    "README.md": [r"\|\s*2\|\s*salt\|\s*1\.2\|", r"'item': 'coffee'", r"'item': 'tea'"],
    "docs/messages.md": [
        r"first message: 0",
        r"b'home'\}, \{'value': b'basket'",
        r"in 3 partitions: 9",
        r"attempt 1 after 2 \[True, True, True\]",
        r"payments: 3",
    ],
    "docs/rows.md": [
        r"\|\s*1\|\s*tea\|\s*NULL\|\n\|\s*2\|\s*NULL\|\s*fr\|",
        r"by user: \[\('u0', 2\), \('u1', 2\)\]",
        # How its messages were batched depends on the machine, and so does their place.
        r'"_position":"\d+:\d+(:\d)?"',
        r"good: 4\n",
        r"\|no json\|\s*\d+:\d+(:\d)?\|",
    ],
    "docs/quickstart.md": [r"in the view: 1000, made again: 1001"],
    "docs/clusters.md": [r"grpc\+tls is how executors call it", r"rows: 1000", r"without Spark: 1000"],
    "docs/acknowledging.md": [r"batch 0: 1,000 rows \(all there was\); orders up to date", r"backlog: 0"],
    "docs/cursors.md": [r"left: 7 in part: 1", r"skipped to 0 rows\nagain: 10", r"backlog: 5"],
    "docs/writing.md": [r"copied: 100", r"mornings: 100", r"carrier 2\|\s*16"],
    "docs/broker.md": [
        r"\{'id': 1, 'item': 'tea'\}",
        r"LEDGER_UNAUTHENTICATED\] the call carried no token",
        r"maxConcurrentReaders = 100 readers",
    ],
    "docs/bucket.md": [
        r"\|\s*1\|\s*tea\|\n\|\s*2\|salt\|",
        r"\|public/default/persistent/orders\|0\s*\|1\s*\|complete\|",
    ],
    "docs/cache.md": [r"100 entries from storage, 100 from the cache"],
    "docs/reading.md": [
        r"of one: 100\nof some: 200\nof all that match: 200\npartitions as one: 1",
        r"from the second entry: 100",
        r"rows of the batches: \[100, 100\]",
    ],
    "docs/tiered-storage.md": [
        r"done - 1 segment in object storage, 1 here as well",
        r"\[0\] has no local data any more",
        r"1001 rows, most of them from there",
        r"'managedLedgerOffloadThresholdInSeconds': 3600",
    ],
    "docs/tables.md": [
        r"segment 0 with 2 rows is published",
        r"\|\s*salt\|\s*1\|\n\|\s*tea\|\s*1\|",
        r"now: 3 rows, before: 2",
        r"table and log: \[1, 2, 3, 4\]",
        r"streamed: 4 in \d batches",
        r"now: \[\('tea', 4\)\]",
    ],
    "docs/retention.md": [r"2 rows in \d+ bytes", r"2 rows to read"],
}
# The page whose reader has LEDGER_STORE set; to the others it is `./ledger-store`.
BY_ENVIRONMENT = "docs/quickstart.md"
# A stream that the page leaves running has to get through what there is.
END = """
if "spark" in globals():
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
"""


def pages() -> list[Path]:
    return [path for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]) if code(path)]


def code(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


def test_every_page_with_code_is_known() -> None:
    assert {str(page.relative_to(ROOT)) for page in pages()} == set(SAYS), "say here what a page's program shows"


def test_there_is_no_other_kind_of_code() -> None:
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        kinds = set(re.findall(r"^```(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert kinds <= {"python"}, f"{page.name} has blocks of {kinds}: nothing runs them"


def test_the_commands_of_the_readme_are_targets() -> None:
    commands = re.findall(r"^    make ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert commands[:2] == ["demo", "test"], "the two that somebody new types; each sets up by itself"
    targets = re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(commands) <= set(targets)


@pytest.mark.docs
@pytest.mark.spark
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_code_runs(page: Path, tmp_path: Path) -> None:
    program = tmp_path / "page.py"
    program.write_text("\n".join([*code(page), END]), encoding="utf-8")
    environment = {name: value for name, value in os.environ.items() if name != "LEDGER_STORE"}
    store, named = tmp_path / "ledger-store", str(page.relative_to(ROOT)) == BY_ENVIRONMENT
    if named:
        store = tmp_path / "elsewhere"
        environment["LEDGER_STORE"] = str(store)
    try:
        ran = subprocess.run(
            [sys.executable, str(program)],
            cwd=tmp_path,
            env={**environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    finally:
        stop_broker_of(store)
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = [line for line in ran.stderr.splitlines() if "pyspark-ledger: the store is " in line]
    assert len(said) == len(set(said)), "where the store is, is said once"
    if named:
        assert (len(said), store.is_dir(), (tmp_path / "ledger-store").exists()) == (1, True, False), ran.stderr
    for line in SAYS[str(page.relative_to(ROOT))]:
        assert re.search(line, ran.stdout), f"{line!r} is not in what {page.name} prints:\n{ran.stdout}"
