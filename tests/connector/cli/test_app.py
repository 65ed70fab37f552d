"""The command `ledger` as its user types it: every command on a real store, text and JSON, errors in one line.

Method: typer's runner in this process, a broker of its own behind it; files of a real Pulsar for `dump`.
"""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.clock import system_clock_ms
from pyspark_ledger.ledger.metadata import partition_records
from pyspark_ledger.ledger.position import EARLIEST
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from pyspark_ledger.ledger.protocol.cursors import AcquireLease, MarkDelete, OpenCursor
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.store.store import Store
from tests.rigs.broker_process import kill_broker
from tests.rigs.command import dumped, dumped_json, run, run_json

FIXTURES = Path(__file__).parents[2] / "fixtures" / "pulsar"


@pytest.fixture
def store(store: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    return store


def test_a_setting_that_is_none_is_said_so_whatever_its_value(store: Path) -> None:
    run("create", "orders")
    for value in ("true", "1"):
        said = run("settings", "set", "cacheEvictionByExpectedReadCount", value, status=1)
        assert "there is no setting 'cacheEvictionByExpectedReadCount'. Set 'cacheEvictionPolicy'" in said


def test_what_the_cache_holds_is_shown(store: Path) -> None:
    run("create", "orders")
    run("append", "orders", "a", "b")
    with_reader = connect(store).client
    with_reader.ask(OpenCursor("orders", "billing", EARLIEST))
    with_reader.ask(AcquireLease("orders", "billing", "elsewhere/1/1", 60_000))
    assert run_json("describe", "orders", "--cache")["policy"] == "cursor-distance"
    shown = run("describe", "orders", "--cache")
    for source in (
        "served from memory",
        "served by the page cache",
        "read from local files",
        "read from object storage",
    ):
        assert f"entries {source}" in shown
    assert "policy cursor-distance, 0 of 67,108,864 bytes of memory in use, 0 evicted and still referenced" in shown
    assert "0 of 268,435,456 bytes of recently used local files" in shown
    assert "billing" in shown


def test_columns_are_described_with_their_types(store: Path) -> None:
    api = connect(store)
    api.ledger("orders").append(pa.table({"id": [1], "tags": [["a"]], "[red]": [b"x"]}))
    api.create_partitioned("wide", 2).append([{"id": 1}])
    assert "columns: id int64, tags list<item: string>, [red] binary (version 0)" in run("describe", "orders")
    assert "columns: id int64 (version 0)" in run("describe", "wide")
    api.ledger("clicks").register_payload_schemas('{"type": "STRING"}')
    assert "columns: a payload schema (version 0)" in run("describe", "clicks")


def test_a_ledger_from_its_creation_to_its_end(store: Path) -> None:
    run("create", "orders", "--max-entries", "2")
    run("append", "orders", "a", "b")
    run("append", "orders", stdin="c\nd\n")
    assert [ledger["rows"] for ledger in run_json("list")] == [4]
    described = run_json("describe", "orders")
    assert [part["entries"] for part in described["segments"]] == [2, 2]
    assert "4 rows in 4 entries" in run("describe", "orders")
    assert "columns: none" in run("describe", "orders")
    rows = run("follow", "orders", "--since", "earliest", "--wait", "0", "--output", "jsonl").splitlines()
    assert [json.loads(row)["value"] for row in rows] == ["YQ==", "Yg==", "Yw==", "ZA=="]
    assert run_json("verify") == {"public/default/persistent/orders": 4}
    assert run_json("seek", "orders", "0")["position"] == described["start"]
    run("delete", "orders", status=1, stdin="n\n")
    run("delete", "orders", "--yes")
    assert run_json("list") == []


def test_cursors_are_made_moved_and_forgotten(store: Path) -> None:
    run("append", "orders", "a", "b", "c")
    end = run_json("describe", "orders")["end"]
    assert run_json("cursor", "create", "orders", "billing")["backlog_rows"] == 3
    assert run_json("cursor", "reset", "orders", "billing", "latest")["next_position"] == end
    assert run_json("cursor", "reset", "orders", "billing", f"{end[0]}:1")["backlog_rows"] == 2
    assert [state["cursor"] for state in run_json("cursor", "list", "orders")] == ["billing"]
    run("cursor", "delete", "orders", "billing")
    assert run_json("cursor", "list", "orders") == []


def test_describe_says_why_a_last_batch_may_be_left(store: Path) -> None:
    run("append", "orders", "a", "b")
    ledger = connect(store).ledger("orders")
    ledger.cursor("mine")
    assert "not acknowledged" not in run("describe", "orders"), "no query of Spark's"
    cursor, start = ledger.cursor("billing"), ledger.end().start
    ledger.client.ask(MarkDelete(ledger.name, "billing", start, replay_floor=start))
    assert "billing: 2 rows not acknowledged" in run("describe", "orders")
    cursor.acknowledge(ledger.end().end)
    assert "not acknowledged" not in run("describe", "orders")


def test_cursors_of_partitions_are_shown_with_the_whole(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run("create", "wide", "--partitions", "2")
    for part in range(2):
        run("append", f"wide-partition-{part}", "a")
        run("cursor", "create", f"wide-partition-{part}", "billing")
    shown = run("cursor", "list", "wide")
    assert all(f"billing of wide-partition-{part}" in shown for part in range(2))
    assert [state["backlog_rows"] for state in run_json("cursor", "list", "wide")] == [1, 1]
    assert "2 rows in 2 entries" in run("describe", "wide")


def test_a_cursor_is_moved_to_a_time(store: Path) -> None:
    run("append", "orders", "a", "b")
    described = run_json("describe", "orders")
    run("cursor", "create", "orders", "billing", "--start", "latest")
    moved = run_json("cursor", "reset", "orders", "billing", "--at-time", "0")
    assert (moved["next_position"], moved["backlog_rows"]) == (described["start"], 2)
    late = run_json("cursor", "reset", "orders", "billing", "--at-time", str(2**62))
    assert late["next_position"] == described["end"]
    at_epoch = run_json("cursor", "reset", "orders", "billing", "--at-time", "1970-01-01T00:00:00Z")
    assert at_epoch["next_position"] == described["start"]
    assert run_json("seek", "orders", "2286-11-20T18:46:40+01:00")["position"] == described["end"]
    assert len(run("follow", "orders", "--since", "2026-01-01T00:00:00Z", "--wait", "0").splitlines()) == 2
    assert run_json("seek", "orders", "2026-01-01T00:00:00")["position"] == described["start"], "a time of the host"
    assert "--at-time is 'noon', expected milliseconds since 1970" in run(
        "cursor", "reset", "orders", "billing", "--at-time", "noon", status=1
    )
    run("cursor", "reset", "orders", "billing", status=2)
    run("cursor", "reset", "orders", "billing", "latest", "--at-time", "0", status=2)
    assert run_json("cursor", "delete", "orders", "billing") == {"deleted": "billing"}


def test_policies_are_set_trimmed_by_and_forgotten(store: Path) -> None:
    run("create", "orders", "--max-entries", "2")
    run("append", "orders", "a", "b", "c", "d", "e")
    assert run_json("trim", "orders")["ledgers"] == [], "nothing without a policy"
    shown = run_json("policy", "orders")
    assert (shown["stated"], shown["effective"]["retentionTimeInMinutes"]) == ({}, -1)
    run("policy", "public/default", "retentionSizeInMB=100", "--namespace")
    assert run_json("policy", "orders")["effective"]["retentionSizeInMB"] == 100
    run("policy", "orders", "retentionTimeInMinutes=0", "retentionSizeInMB=0")
    assert "itself" in run("policy", "orders")
    trimmed = run_json("trim", "orders")
    described = run_json("describe", "orders")
    assert trimmed["start"] == described["start"]
    assert len(described["segments"]) == 1, "by this call, or by the broker itself before it"
    forgotten = run_json("policy", "orders", "--forget", "retentionTimeInMinutes", "--forget", "retentionSizeInMB")
    assert forgotten["stated"] == {}
    assert run_json("policy", "public/default", "--namespace")["stated"] == {"retentionSizeInMB": 100}


def test_wrong_policies_are_one_line(store: Path) -> None:
    run("append", "orders", "a")
    for given, said in (
        (["retentionSizeMB=1"], "Did you mean 'retentionSizeInMB'"),
        (["retentionSizeInMB"], "not of the form NAME=VALUE"),
        (["retentionSizeInMB=much"], "'much', expected a whole number"),
        (["retentionSizeInMB=1", "retentionSizeInMB=2"], "set twice"),
        (["retentionSizeInMB=0"], "only one of the two limits is 0"),
    ):
        assert said in run("policy", "orders", *given, status=1)


def test_a_ledger_is_ended_and_keeps_its_properties(store: Path) -> None:
    run("append", "orders", "a", "b")
    assert run_json("properties", "orders", "owner=billing")["owner"] == "billing"
    assert "owner = billing" in run("properties", "orders")
    assert "owner" not in run_json("properties", "orders", "--remove", "owner")
    run("terminate", "orders", status=1, stdin="n\n")
    last = run_json("terminate", "orders", "--yes")["position"]
    assert run_json("terminate", "orders")["position"] == last, "what has ended is not asked about"
    assert "LEDGER_TERMINATED" in run("append", "orders", "c", status=1)
    assert "terminated: its last entry is" in run("describe", "orders")
    rows = run("follow", "orders", "--since", "earliest", "--output", "jsonl").splitlines()
    assert len(rows) == 2, "and a loop without --wait ends"


def test_the_records_of_a_store_are_dumped_as_pulsar_holds_them(store: Path) -> None:
    run("create", "orders", "--max-entries", "2")
    run("append", "orders", "a", "b", "c")
    run("cursor", "create", "orders", "billing", "--start", "latest")
    described = run_json("describe", "orders")
    info = dumped_json("record", "orders")
    assert [int(part["ledgerId"]) for part in info["ledgerInfo"]] == [p["ledger_id"] for p in described["segments"]]
    assert info["ledgerInfo"][0]["entries"] == "2"
    cursor = dumped_json("record", "orders", "--cursor", "billing")
    end = described["end"]
    found = [int(cursor["record"][name]) for name in ("markDeleteLedgerId", "markDeleteEntryId")]
    assert found == [end[0], end[1] - 1], "the last acknowledged entry, as Pulsar writes it"
    assert "Did you mean 'billing'" in dumped("record", "orders", "--cursor", "biling", status=1)
    assert "LEDGER_NOT_FOUND" in dumped("record", "nothing", status=1)


def test_settings_are_shown_changed_and_taken_back(store: Path) -> None:
    run("append", "orders", "a")
    listed = {state["name"]: state for state in run_json("settings", "list")}
    assert listed["metricsLedgersMax"]["value"] == 1_000
    assert "logFormat" in run("settings", "list")
    assert run_json("settings", "set", "metricsLedgersMax", "5")["changed"]
    assert "metricsLedgersMax = 1000 ledgers" in run("settings", "reset", "metricsLedgersMax")
    assert "Did you mean 'metricsLedgersMax'?" in run("settings", "set", "metricsLedgerMax", "5", status=1)
    assert "restart" in run("settings", "set", "ledgerBlockSizeBytes", "5242880", status=1)
    assert "expected a whole number" in run("settings", "set", "metricsLedgersMax", "9" * 5000, status=1)
    assert "0 to 100000 ledgers" in run("settings", "set", "metricsLedgersMax", "9" * 20, status=1)


@pytest.mark.broker_process
def test_errors_are_one_line_that_says_what_to_do(store: Path) -> None:
    assert "there is no ledger store at" in run("list", status=1)
    run("append", "orders", "a")
    said = run("describe", "oders", status=1)
    assert "Did you mean 'orders'?" in said
    assert "Traceback" not in said
    assert "has no cursor 'x'" in run("cursor", "delete", "orders", "x", status=1)
    said = run("follow", "orders", "--since", "noon", status=1)
    assert "--since is 'noon', expected earliest, latest, SEGMENT:ENTRY, or milliseconds since 1970, or a time" in said
    assert "--start is '2026-02-30'" in run("cursor", "create", "orders", "x", "--start", "2026-02-30", status=1)
    assert "--at-time is 'noon', expected" in run("cursor", "reset", "orders", "x", "--at-time", "noon", status=1)
    assert "TIME is '2026-11-22T24:00:00Z', expected" in run("seek", "orders", "2026-11-22T24:00:00Z", status=1)


def test_what_looks_like_markup_or_an_emoji_is_printed_as_it_is(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    name, cursor = "t[/n]/orders[red]", "[/x]:100:"
    assert "public/default/persistent/a[b]" in run("create", "a[b]")
    run("append", name, "a")
    assert cursor in run("cursor", "create", name, cursor)
    assert cursor in run("cursor", "list", name)
    assert cursor in run("describe", name)
    assert name in run("list")
    assert run("verify", name) == "1 entry verified\n"
    assert "orders[red]" in run("policy", name)
    assert "'b:100:'" in run("describe", "b:100:", status=1)


def test_a_time_that_python_has_no_value_for_is_printed(store: Path) -> None:
    times = connect(store).ledger("times")
    far, exact = pa.array([3 * 10**17], pa.timestamp("us")), pa.array([123], pa.timestamp("ns"))
    times.append(pa.table({"n": [1], "far": far, "exact": exact}))
    (row,) = run("follow", "times", "--since", "earliest", "--wait", "0", "--output", "jsonl").splitlines()
    said = {"n": 1, "far": "11476-08-15 05:20:00.000000", "exact": "1970-01-01 00:00:00.000000123"}
    assert json.loads(row) == said
    assert "11476-08-15" in run("follow", "times", "--since", "earliest", "--wait", "0")


def test_verify_walks_the_partitions(store: Path) -> None:
    run("create", "views", "--partitions", "2")
    for number in range(4):
        run("append", "views", f"page {number}")
    assert sorted(run_json("verify", "views")) == [f"public/default/persistent/views-partition-{n}" for n in range(2)]
    assert sum(run_json("verify").values()) == 4
    part = connect(store).ledger("views").partitions()[0]  # type: ignore[attr-defined]  # it is partitioned
    part.append(b"one more, so that there is something to damage")
    segment = store / "ledgers" / f"{part.describe().segments[0].ledger_id}.ledger"
    part.terminate()  # sealed
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    for arguments in (["verify"], ["verify", "views"], ["verify", "views-partition-0"]):
        assert "LEDGER_CORRUPT" in run(*arguments, status=1)


def test_what_is_appended_need_not_be_text(store: Path) -> None:
    run("append", "orders", "a", "\udcff", "")
    CliRunner().invoke(app, ["append", "orders"], input=b"\xfe\n\nb\r\nlast")
    assert "nothing was appended" in run("append", "orders", stdin="")
    log = connect(store).ledger("orders").read()
    assert log.column("value").to_pylist() == [b"a", b"\xff", b"", b"\xfe", b"", b"b", b"last"]


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_damaged_ledger_hides_no_other_and_can_be_given_up(store: Path) -> None:
    run("append", "orders", "a")
    (segment,) = run_json("describe", "orders")["segments"]
    run("append", "clicks", "b")
    kill_broker(store)
    (store / "ledgers" / f"{segment['ledger_id']}.ledger").unlink()
    listed = CliRunner().invoke(app, ["list", "--output", "json"])
    assert listed.exit_code == 1
    assert [ledger["name"] for ledger in json.loads(listed.stdout)] == ["public/default/persistent/clicks"]
    assert listed.stderr.startswith("orders: [LEDGER_DATA_LOSS]")
    assert "orders, which is damaged" in run("delete", "orders", status=1, stdin="n\n")
    run("delete", "orders", "--yes")
    assert [ledger["rows"] for ledger in run_json("list")] == [1]


def test_verify_names_the_byte_that_disagrees(store: Path) -> None:
    run("create", "orders", "--max-entries", "1")
    run("append", "orders", "hello", "world")
    file = store / "ledgers" / "0.ledger"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    said = run("verify", "orders", status=1)
    assert "0.ledger" in said
    assert "CRC32C" in said


def test_files_of_a_real_pulsar_are_dumped() -> None:
    data = next(
        path for path in (FIXTURES / "02-lz4" / "objects").iterdir() if "-ledger-" in path.name and path.suffix == ""
    )
    data = data.with_name(data.name.removesuffix("-index"))
    rows = dumped_json("segment", str(data))
    assert {row["kind"] for row in rows} == {"batch"}
    first = dumped_json("entry", str(data), "0")
    assert first["metadata"]["numMessagesInBatch"] == rows[0]["rows"]
    index = dumped_json("index", f"{data}-index")
    assert index["managedLedger"] == "public/fx/persistent/02-lz4"
    assert index["entries"] == len(rows)
    ledgers = dumped_json("metadata", str(FIXTURES / "02-lz4" / "managed-ledger-info.bin"))["ledgerInfo"]
    assert len(ledgers) > 1
    cursor = next((FIXTURES / "cur-holes-lz4").glob("*.cursor-info.live.bin"))
    assert "cursorsLedgerId" in dumped_json("metadata", "--cursor", str(cursor))


def test_a_file_that_is_none_of_these_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"nonsense" * 100)
    assert "LEDGER_CORRUPT" in dumped("segment", str(tmp_path / "x"), status=1)
    assert "LEDGER_CORRUPT" in dumped("index", str(tmp_path / "x"), status=1)
    assert "cannot be read" in dumped("segment", str(tmp_path / "y"), status=1)


def test_hostile_names_are_one_line_with_their_code_points(store: Path) -> None:
    run("create", "orders")
    for command in (("create", "a\u202eb"), ("cursor", "create", "orders", "a\u202eb"), ("append", "a\u202eb", "1")):
        said = run(*command, status=1)
        assert "U+202E RIGHT-TO-LEFT OVERRIDE" in said
        assert "\u202e" not in said
        assert said.count("\n") == 1
    # As the shell passes a byte that is no UTF-8.
    assert "U+DCFF" in run("create", "a\udcffb", status=1)
    assert "U+DCFF" in run("cursor", "create", "orders", "a\udcffb", status=1)
    assert "100000 characters, at most 1024" in run("describe", "x" * 100_000, status=1)
    assert [ledger["name"] for ledger in run_json("list")] == ["public/default/persistent/orders"]


@pytest.mark.broker_process
def test_a_name_of_an_earlier_release_is_listed_as_it_is(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr(partition_records, "require_new_name", lambda _: None)
        made = Store.open(store, settings=Settings(), clock=system_clock_ms, create=True)
        made.create_ledger(CreateLedger("a\u202eb"))
        made.close()
    assert "a\\u202eb" in run("list")
    assert "a\\u202eb" in run("describe", "a\u202eb")
    run("delete", "a\u202eb", "--yes")
    assert run_json("list") == []


def test_a_partitioned_ledger_is_listed_as_the_sum_of_its_partitions(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    run("create", "orders", "--partitions", "3")
    connect(store).ledger("orders").append([{"id": number} for number in range(7)])
    run("cursor", "create", "orders-partition-1", "billing")
    (listed,) = run_json("list")
    parts = [run_json("describe", part["name"]) for part in listed["partitions"]]
    assert len(parts) == 3
    for field in ("rows", "entries", "size_bytes", "segment_count"):
        assert listed[field] == sum(part[field] for part in parts), field
    assert listed["segment_count"] == sum(len(part["segments"]) for part in parts) >= 1
    said = run("list")
    cells = [cell.strip() for cell in said.splitlines()[-2].split("│")]
    assert cells[1:6] == ["orders", "7", *(f"{listed[name]:,}" for name in ("entries", "size_bytes", "segment_count"))]
    assert "3 partitions" in said
    assert "-1" not in said
    described = run("describe", "orders")
    assert "7 rows in" in described
    assert "orders-partition-2" in described
    assert "-1:-1" not in described


def test_one_of_a_thing_is_singular(store: Path) -> None:
    run("create", "orders")
    assert "0 rows in 0 entries, [before the first entry, before the first entry)" in run("describe", "orders")
    run("append", "orders", "a")
    assert "1 row in 1 entry" in run("describe", "orders")
    assert "1 entry verified" in run("verify")
    assert "0 segments with 0 entries trimmed" in run("trim", "orders")
    assert "with 1 row and 0 cursors" in run("delete", "orders", status=1, stdin="n\n")
