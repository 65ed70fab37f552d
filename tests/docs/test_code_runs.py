"""Goal: every line of code in README and docs runs.

Method: all pages are one program, in the order of reading. Each page is also a program of its own, run as its reader
would. CI runs these programs only for README and quickstart.

A page's program has a directory and an interpreter of its own, and a JVM if it asks for one. The program of all pages
has one directory and one Spark session. Shell lines are indented. After `make` follows an existing target.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

from streaming_examples.acts.broker_control import stop_broker_of

ROOT = Path(__file__).resolve().parents[2]
# What the reader sees, and would miss if the page were wrong.
SAYS = {
    "README.md": [r"\|\s*2\|\s*salt\|\s*1\.2\|", r"'item': 'coffee'", r"'item': 'tea'"],
    "docs/messages.md": [
        r"first message: (0|-1)",  # -1 if the broker got the message alone, on a busy machine
        r"b'home', '__key': 'alice', .*\('country', 'fr'\).*b'basket', '__key': 'bob'",
        r"in 3 partitions: 9",
        r"attempt 1 after 2 \[True, True, True\]",
        r"payments: 3",
        r"entries of the photo: 3",
    ],
    "docs/rows.md": [
        r"\|\s*1\|\s*tea\|\s*NULL\|\n\|\s*2\|\s*NULL\|\s*fr\|",
        r"\|\s*1\|\s*NULL\|\n\|\s*2\|\s*gift\|",
        r"by user: \[\('u0', 2\), \('u1', 2\)\]",
        r"income: 13\.50\n",
        r"visits: Visit\(user='u7', at=datetime.datetime\(2026, 1, 2, 0, 0, tzinfo=datetime\.timezone\.utc\)\)",
        # How its messages were batched depends on the machine, and so does their place.
        r'"_position":"\d+:\d+(:\d)?"',
        r"good: 4\n",
        r"\|no json\|\s*\d+:\d+(:\d)?\|",
    ],
    "docs/quickstart.md": [r"\|\s*ada\|\s*2\|\n\|\s*bob\|\s*1\|", r"in the view: 3, made again: 4"],
    "docs/clusters.md": [
        r"grpc\+tls is how executors call it",
        r"rows: 1000",
        r"without Spark: 1000",
        r"ok +driver's address: .* reached",
    ],
    "docs/acknowledging.md": [r"batch 0: 1,000 rows \(all there was\); parcels up to date", r"backlog: 0"],
    "docs/cursors.md": [
        r"left: 7 in part: 1",
        r"skipped to 0 rows\nagain: 10",
        r"worked on \[0, 1, 2\] redeliveries: 0\nworked on \[3, 4, 5\] redeliveries: 1",
        r"trips of trips-partition-\d 1\n(trips of trips-partition-\d 1\n){7}",
        r"fares left: 0 \['fares-eu', 'fares-us'\]",
        r"backlog: 5",
    ],
    "docs/writing.md": [r"copied: 100", r"mornings: 100", r"carrier 2\|\s*16"],
    "docs/from-kafka.md": [
        r"\|\s*attic\|\s*35\.25\|\n\|\s*cellar\|\s*12\.0\|\n\|\s*roof\|\s*31\.5\|",
        r"alarms: 2",
    ],
    "docs/from-pulsar.md": [
        r"\|\s*paris\|\s*3\.5\|\n\|\s*rome\|21\.0\|\n\|\s*rome\|21\.0\|\n\+",
        r"long rides: 2",
    ],
    "docs/broker.md": [
        r"\{'id': 1, 'item': 'tea'\}",
        r"LEDGER_UNAUTHENTICATED\] the call had no token",
        r"maxConcurrentRequests = 100 calls",
    ],
    "docs/bucket.md": [
        r"\|\s*1\|\s*tea\|\n\|\s*2\|salt\|",
        r"without Spark: \{'item': \['tea', 'salt'\]\}",
        r"\|public/default/persistent/shipments\|\d+\s*\|1\s*\|complete\|",
    ],
    "docs/cache.md": [r"100 entries from storage, 100 from the cache"],
    "docs/reading.md": [
        r"of one: 100\nof some: 200\nof all that match: 200\npartitions as one: 1",
        r"from the second entry: 100",
        r"200 rows read \(batches: 2, runs: 1\)",
        r"joined: \['one', 'two'\]",
    ],
    "docs/with-duckdb.md": [
        r"by item: \[\('salt', 1750\.0\), \('tea', 2250\.0\)\]",
        r"dearest: \[\('salt', 3\.5\), \('tea', 4\.5\)\]",
        r"some: \[\(1000, 4\.5\)\]",
        r"without a broker: \[\(1000,\)\]",
    ],
    "docs/loops.md": [
        r"letters: \[0, 1, 2\]",
        r"got 3",
        r"partitions: \['rides-partition-0', 'rides-partition-1'\]",
    ],
    "docs/async.md": [r"crates: 2", r"pings: 100"],
    "docs/tiered-storage.md": [
        r"done - 1 segment in object storage, 1 here as well",
        r"\[\d+\] has no local data any more",
        r"1001 rows, most of them from there",
        r"'managedLedgerOffloadThresholdInSeconds': 3600",
    ],
    "docs/tables.md": [
        r"segment \d+ with 2 rows is published",
        r"\|\s*salt\|\s*1\|\n\|\s*tea\|\s*1\|",
        r"now: 3 rows, before: 2",
        r"table and log: \[1, 2, 3, 4\]",
        r"streamed: 4 in \d batches",
        r"now: \[\('tea', 4\)\]",
    ],
    "docs/notebooks.md": [
        r"Ledger\(public/default/persistent/sensors\): 2,000 rows in ",
        r"ReadPlan: \d tasks?, 1 ledger\n  columns: id, place\n",
        r"caught up: 2,000 rows read \(.*\)\nthe chart has ended",
    ],
    "docs/sizing.md": [r"\d+ bytes a row, in \d+ entries", r"\d+ GB for 7 days"],
    "docs/testing.md": [],
    "docs/retention.md": [r"2 rows in \d+ bytes", r"2 rows to read"],
}
# The page whose reader has LEDGER_STORE set; to the others it is `./ledger-store`.
BY_ENVIRONMENT = QUICKSTART = "docs/quickstart.md"
FIRST_PAGES = {"README.md", QUICKSTART}
WORDS_MAX = 5
ORDINARY = {"word", "run", "open"}  # have another meaning in plain English
TURN = "=== the turn of "
PAGE_SECONDS, ALL_PAGES_SECONDS = 300, 900
# A stream that the page leaves running has to get through what there is.
END = """
if "spark" in globals():
    for query in spark.streams.active:
        query.processAllAvailable()
        query.stop()
"""


# What a tab of the quickstart shows, in a directory of its own. The script runs twice.
TABS_SAY = {
    "Notebook": [r"\|\s*ada\|\s*2\|\n\|\s*bob\|\s*1\|"],
    "Script": [r"(\|\s*ada\|/pay\|\n){2}"],
    "No Spark": [
        r"\[\{'user': 'ada', 'page': '/home'\}, \{'user': 'bob', 'page': '/cart'\}, \{'user': 'ada', 'page': '/pay'\}\]"
    ],
}
WITHOUT_SPARK = "\nimport sys\nassert 'pyspark' not in sys.modules\n"


def pages() -> list[Path]:
    return [path for path in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]) if code(path)]


def code(page: Path) -> list[str]:
    """Return the blocks of a page. Of its tabs, those of the first count."""
    text = page.read_text(encoding="utf-8")
    own = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [*next(iter(tabs(page).values()), []), *own]


def tabs(page: Path) -> dict[str, list[str]]:
    """Return the blocks of each tab of a page."""
    text = page.read_text(encoding="utf-8")
    found = re.findall(r'^=== "(.*)"\n((?:\n| {4}.*\n)+)', text, re.MULTILINE)
    fenced = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return {title: fenced.findall(textwrap.dedent(body)) for title, body in found}


def in_order() -> list[Path]:
    """README, then the pages as docs/index.md has them."""
    linked = re.findall(r"\]\(([a-z-]+\.md)\)", (ROOT / "docs" / "index.md").read_text(encoding="utf-8"))
    return [
        page for page in dict.fromkeys([ROOT / "README.md", *(ROOT / "docs" / name for name in linked)]) if code(page)
    ]


def run(
    blocks: list[str], directory: Path, environment: dict[str, str], seconds: int, *, end: str = END
) -> subprocess.CompletedProcess[str]:
    """Run one program to its end, and stop the brokers of its stores."""
    (directory / "page.py").write_text("\n".join([*blocks, end]), encoding="utf-8")
    inherited = {name: value for name, value in os.environ.items() if name != "LEDGER_STORE"}
    try:
        return subprocess.run(
            [sys.executable, "page.py"],
            cwd=directory,
            env={**inherited, **environment, "PYTHONPATH": str(ROOT)},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    finally:
        for note in directory.glob("*/broker.json"):
            stop_broker_of(note.parent)


def require_said(page: str, printed: str) -> None:
    for line in SAYS[page]:
        assert re.search(line, printed), f"{line!r} is not in what {page} prints:\n{printed}"


def test_every_page_with_code_is_known() -> None:
    assert {str(page.relative_to(ROOT)) for page in pages()} == set(SAYS), "say here what a page's program shows"


def test_there_is_no_other_kind_of_code() -> None:
    for page in sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]):
        kinds = set(re.findall(r"^```(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE))
        assert kinds <= {"python"}, f"{page.name} has blocks of {kinds}: nothing runs them"


@pytest.mark.parametrize("page", SAYS)
def test_a_page_uses_no_name_of_another_page(page: str) -> None:
    """The program of all pages would not fail, because an earlier page has the name."""
    command = [sys.executable, "-m", "ruff", "check", "--isolated", "--quiet", "--select", "F821", "-"]
    found = subprocess.run(command, input="\n".join(code(ROOT / page)), capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout


def test_the_commands_of_the_readme_are_targets() -> None:
    commands = re.findall(r"^    make ([a-z-]+)", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert commands[:2] == ["demo", "test"], "the two that somebody new types; each sets up by itself"
    targets = re.findall(r"^([a-z-]+):(?!=)", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert set(commands) <= set(targets)


def test_the_index_leads_to_every_page_with_code() -> None:
    assert set(in_order()) == set(pages())


@pytest.mark.docs
@pytest.mark.spark
@pytest.mark.timeout(PAGE_SECONDS + 30)
@pytest.mark.parametrize(
    "page",
    [pytest.param(name, marks=() if name in FIRST_PAGES else pytest.mark.slow) for name in SAYS],
)
def test_code_runs(page: str, tmp_path: Path) -> None:
    store, named = tmp_path / "ledger-store", page == BY_ENVIRONMENT
    environment = {}
    if named:
        store = tmp_path / "elsewhere"
        environment["LEDGER_STORE"] = str(store)
    ran = run(code(ROOT / page), tmp_path, environment, PAGE_SECONDS)
    assert ran.returncode == 0, ran.stderr[-3000:]
    said = [line for line in ran.stderr.splitlines() if "pyspark-ledger: the store is " in line]
    assert len(said) == len(set(said)), "where the store is, is said once"
    if named:
        assert (len(said), store.is_dir(), (tmp_path / "ledger-store").exists()) == (1, True, False), ran.stderr
    require_said(page, ran.stdout)


def test_a_tab_of_the_quickstart_needs_at_most_five_words() -> None:
    """Words are those of the package in docs/concepts.md. The text before the tabs belongs to each tab."""
    concepts = (ROOT / "docs" / "concepts.md").read_text(encoding="utf-8").partition("\n## Words of Spark")[0]
    words = {word for row in re.findall(r"^\| ([a-z ,-]+) \|", concepts, re.MULTILINE) for word in row.split(", ")}
    assert {"ledger", "store", "row", "subscription", "cursor", "segment"} <= words
    text = (ROOT / QUICKSTART).read_text(encoding="utf-8").partition("\n## SQL")[0]
    shared, *parts = re.split(r'^=== ".*"$', text, flags=re.MULTILINE)
    for part in parts:
        used = {word for word in words - ORDINARY if re.search(rf"\b{word}s?\b", shared + part)}
        assert len(used) <= WORDS_MAX, used


@pytest.mark.docs
@pytest.mark.spark
@pytest.mark.timeout(2 * PAGE_SECONDS)
@pytest.mark.parametrize("tab", ["Script", "No Spark"])
def test_a_tab_of_the_quickstart_runs(tab: str, tmp_path: Path) -> None:
    assert list(TABS_SAY) == list(tabs(ROOT / QUICKSTART))
    blocks = tabs(ROOT / QUICKSTART)[tab]
    for _ in range(2 if tab == "Script" else 1):
        ran = run(blocks, tmp_path, {}, PAGE_SECONDS, end=WITHOUT_SPARK if tab == "No Spark" else "")
        assert ran.returncode == 0, ran.stderr[-3000:]
    for line in TABS_SAY[tab]:
        assert re.search(line, ran.stdout), ran.stdout


@pytest.mark.docs
@pytest.mark.spark
@pytest.mark.timeout(PAGE_SECONDS + 30)
def test_the_tests_of_a_page_pass(tmp_path: Path) -> None:
    (tmp_path / "test_orders.py").write_text("\n".join(code(ROOT / "docs/testing.md")), encoding="utf-8")
    (tmp_path / "pytest.ini").write_text("[pytest]\n", encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "test_orders.py"]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PAGE_SECONDS, check=False)
    assert " 3 passed" in ran.stdout, ran.stdout


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(PAGE_SECONDS)
def test_the_notebook_tab_runs_in_a_notebook(tmp_path: Path) -> None:
    blocks = tabs(ROOT / QUICKSTART)["Notebook"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(block) for block in blocks])
    kernel = AsyncKernelManager()
    kernel.kernel_spec.argv = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    inherited = {name: value for name, value in os.environ.items() if name != "LEDGER_STORE"}
    client = NotebookClient(notebook, km=kernel, timeout=PAGE_SECONDS, resources={"metadata": {"path": str(tmp_path)}})
    try:
        client.execute(env={**inherited, "PYTHONPATH": str(ROOT)})
    finally:
        stop_broker_of(tmp_path / "ledger-store")
    shown = "".join(output.get("text", "") for cell in notebook.cells for output in cell.outputs)
    for line in TABS_SAY["Notebook"]:
        assert re.search(line, shown), shown


@pytest.mark.docs
@pytest.mark.spark
@pytest.mark.timeout(ALL_PAGES_SECONDS + 30)
def test_code_runs_in_the_order_of_reading(tmp_path: Path) -> None:
    """As in one notebook, whose session has Delta from its start: what a page leaves must not trip a later one."""
    blocks = ["from pyspark_ledger import session", "session(delta=True)"]
    for page in in_order():
        blocks += [f"print({TURN + str(page.relative_to(ROOT))!r}, flush=True)", *code(page)]
    ran = run(blocks, tmp_path, {}, ALL_PAGES_SECONDS)
    turns = dict(turn.split("\n", 1) for turn in ran.stdout.split(TURN)[1:])
    assert ran.returncode == 0, f"{list(turns)[-1:]}: {ran.stderr[-3000:]}"
    for page, printed in turns.items():
        require_said(page, printed)
