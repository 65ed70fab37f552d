"""Goal: a cursor's state can be looked at, ours and Pulsar's. Method: typer's runner, a small store, and what a real
Pulsar wrote.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from typer.testing import CliRunner

from pyspark_ledger.connector.cli.app import app
from pyspark_ledger.ledger.api.store import connect
from pyspark_ledger.ledger.client.acknowledge import acknowledge
from pyspark_ledger.ledger.client.client import Client
from pyspark_ledger.ledger.message.compression import ZSTD
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.positions.acknowledge_request import acknowledge_batch
from pyspark_ledger.ledger.positions.position_chunks import encode_state
from pyspark_ledger.ledger.positions.position_info import encode_info
from pyspark_ledger.ledger.positions.position_set import PositionSet
from pyspark_ledger.ledger.protocol.actions import AcknowledgeCommand
from pyspark_ledger.ledger.protocol.cursors import AskAckedRanges, DescribeCursor, NextDelivery
from pyspark_ledger.ledger.protocol.request import Request
from tests.rigs import broker_process as fixtures
from tests.rigs.command import dumped, dumped_json, run, run_json

FIXTURES = Path(__file__).parents[2] / "fixtures" / "pulsar"


def test_a_cursor_is_described_and_its_ledger_dumped(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    orders = connect(store).ledger("orders")
    for _ in range(4):
        orders.append(pa.table({"n": [1, 2, 3]}))
    cursor = orders.cursor("c", orders.describe().start)
    assert run_json("cursor", "describe", "orders", "c")["encoding"] == "none"
    (first,) = {segment.ledger_id for segment in orders.describe().segments}
    state = cursor.acknowledge_rows([(first, 2), (first, 1, 1)])
    said = run_json("cursor", "describe", "orders", "c")
    assert said["markDelete"] == f"{first}:-1"
    assert said["firstRanges"] == [f"({first}:1..{first}:2]"]
    assert (said["partialEntries"], said["backlog"]["rows"]) == (1, 8)
    assert said["cursorLedger"] == state.cursor_ledger >= 0
    dumped = dumped_json("positioninfo", str(store / "ledgers" / f"{state.cursor_ledger}.ledger"))
    assert (dumped["acknowledgedRanges"], dumped["partialEntries"], dumped["deltas"]) == (1, 1, 0)
    assert "acknowledgedEntries: 1" in run("cursor", "describe", "orders", "c")


def test_a_cursors_state_is_exported_whole(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    orders, made = connect(store).ledger("orders"), tmp_path / "made"
    orders.append(pa.table({"n": range(20_000)}))
    start = orders.describe().start
    cursor = orders.cursor("c", start)
    run("cursor", "export", "orders", "c", str(made))
    assert [file.name for file in made.iterdir()] == ["000000.entry"]
    cursor.acknowledge_rows([(start.ledger_id, 0, row) for row in range(0, 20_000, 3)])
    shown = run_json("cursor", "describe", "orders", "c")
    assert shown["partialEntries"] == 1
    for compression, size, parts in (("NONE", "1048576", 1), ("NONE", "1024", 3), ("ZSTD", "1048576", 1)):
        folder = tmp_path / f"{compression}-{size}"
        written = run_json(
            "cursor", "export", "orders", "c", str(folder), "--compression", compression, "--entry-bytes", size
        )
        files = sorted(map(str, folder.iterdir()))
        dumped = dumped_json("positioninfo", *files, "--compression", compression)
        assert dumped["parts"] >= parts
        assert len(files) == written["entries"] == dumped["parts"] + (parts > 1)
        for one in ("markDelete", "acknowledgedRanges", "acknowledgedEntries", "partialEntries", "firstRanges"):
            assert dumped[one] == shown[one], one
    assert "is not an empty directory" in run("cursor", "export", "orders", "c", str(made), status=1)
    new = tmp_path / "new"
    run("cursor", "export", "orders", "c", str(new), "--compression", "BROTLI", status=1)
    run("cursor", "export", "orders", "c", str(new), "--entry-bytes", "10", status=1)
    run("cursor", "export", "orders", "gone", str(new), status=1)
    assert not new.exists()


def test_an_export_is_of_one_moment(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cursor may move between two calls: no export lacks what was acknowledged before the first call."""
    monkeypatch.setenv("LEDGER_STORE", str(store))
    orders = connect(store).ledger("orders")
    for _ in range(4):
        orders.append(pa.table({"n": [1]}))
    start = orders.describe().start
    cursor = orders.cursor("c", start)
    cursor.acknowledge_rows([(start.ledger_id, 1), (start.ledger_id, 2)])
    ask = Client.ask

    def moving(self: Client, request: Request[Any], **named: Any) -> Any:
        answer = ask(self, request, **named)
        if isinstance(request, DescribeCursor | AskAckedRanges):
            command = AcknowledgeCommand(orders.name, "c")
            acknowledge(orders.client, command, [acknowledge_batch(*np.array([[start.ledger_id], [0], [-1]]))])
        return answer

    with monkeypatch.context() as patch:
        patch.setattr(Client, "ask", moving)
        run("cursor", "export", "orders", "c", str(tmp_path / "before"))
    run("cursor", "export", "orders", "c", str(tmp_path / "after"))
    told = [dumped_json("positioninfo", str(tmp_path / name / "000000.entry")) for name in ("before", "after")]
    said = [(one["markDelete"], one["acknowledgedEntries"]) for one in told]
    assert said == [(f"{start.ledger_id}:-1", 2), (f"{start.ledger_id}:2", 0)]


@pytest.mark.broker_process
@pytest.mark.thorough
def test_a_cursor_that_is_damaged_does_not_hide_the_others(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    orders = connect(store).ledger("orders")
    orders.append(pa.table({"n": [1]}))
    first = orders.describe().start
    orders.append(pa.table({"n": [2]}))
    kept = {name: orders.cursor(name, first) for name in ("audit", "billing", "crm")}
    state = kept["billing"].acknowledge_rows([(first.ledger_id, 1)])
    file = store / "ledgers" / f"{state.cursor_ledger}.ledger"
    data = bytearray(file.read_bytes())
    data[160] ^= 1
    file.write_bytes(data)
    fixtures.kill_broker(store)
    for command in (("cursor", "list", "orders"), ("describe", "orders")):
        told = run(*command, status=1).splitlines()
        (line,) = [one for one in told if one.startswith("billing: ")]
        assert f"{state.cursor_ledger}.ledger" in line
        assert all(any(name in one for one in told) for name in ("audit", "crm"))
    whole = CliRunner().invoke(app, ["cursor", "list", "orders", "--output", "json"])
    assert (whole.exit_code, whole.stderr.count("billing: ")) == (1, 1)
    assert [one["cursor"] for one in json.loads(whole.stdout)] == ["audit", "crm"]
    kept["billing"].reset(first)
    run("describe", "orders")
    assert len(run_json("cursor", "list", "orders")) == 3


def test_pulsars_states_are_dumped() -> None:
    (file,) = (FIXTURES / "cur-holes-none").glob("many.cursor-ledger-*.live/*.bin")
    said = dumped_json("positioninfo", str(file))
    assert (said["acknowledgedRanges"], said["acknowledgedEntries"]) == (3008, 6033)
    assert said["encoding"] == "field 6, words of bits"
    assert said["firstRanges"][0] == "(97:1..97:2]"


def test_chunks_and_their_footer_are_dumped(tmp_path: Path) -> None:
    made = PositionSet()
    made.add_entries(7, np.arange(0, 100_000, 3))
    files = []
    entries = encode_state(encode_info(Position(7, -1), made), entry_bytes=4096)
    for number, entry in enumerate(entries):
        files.append(tmp_path / f"{number:03}")
        files[-1].write_bytes(entry)
    said = dumped_json("positioninfo", *map(str, files))
    assert (said["acknowledgedEntries"], said["parts"]) == (33_334, len(files) - 1)
    assert "states" in dumped("positioninfo", *map(str, files[1:]), status=1)
    single = tmp_path / "zstd"
    single.write_bytes(encode_state(encode_info(Position(7, -1), made), compression=ZSTD)[0])
    assert dumped_json("positioninfo", str(single), "--compression", "ZSTD")["acknowledgedRanges"] == 33_334
    dumped("positioninfo", str(single), status=1)
    dumped("positioninfo", str(tmp_path / "none"), status=1)


@pytest.mark.parametrize("name", ["few", "many", "runs"])
def test_records_of_pulsars_metadata_are_dumped_compressed_or_not(name: str) -> None:
    compressed = FIXTURES / "cur-holes-lz4" / f"{name}.cursor-info.live.bin"
    said = dumped_json("positioninfo", str(compressed))
    assert (said["record"], said["compression"]) == ("ManagedCursorInfo", "LZ4")
    (ledger,) = FIXTURES.glob(f"cur-holes-lz4/{name}.cursor-ledger-*.live")
    assert said["cursorLedger"] == int(ledger.name.split("-")[-1].partition(".")[0])
    plain = FIXTURES / "cur-batch-messageranges" / f"{name}.cursor-info.after-unload.bin"
    assert dumped_json("positioninfo", str(plain))["compression"] == "NONE"


def test_all_ranges_are_dumped_where_all_are_asked_for() -> None:
    file = str(FIXTURES / "cur-holes-lz4" / "runs.cursor-info.after-unload.bin")
    few, everything = dumped_json("positioninfo", file), dumped_json("positioninfo", file, "--all")
    assert few["cursorLedger"] == -1
    assert len(few["firstRanges"]) == 20
    assert len(everything["ranges"]) == everything["acknowledgedRanges"] == 401
    assert everything["ranges"][:20] == few["firstRanges"]


@pytest.mark.parametrize("name", ["few", "many", "runs"])
def test_batches_are_dumped_row_by_row(name: str) -> None:
    """The rows that Pulsar's client acknowledged and the rows that the dump leaves are all rows of each batch."""
    folder = FIXTURES / "cur-batch-messageranges"
    said = dumped_json("positioninfo", str(folder / f"{name}.cursor-info.after-unload.bin"), "--all")
    acknowledged: dict[str, set[int]] = {}
    for line in gzip.decompress((folder / f"{name}.acked.txt.gz").read_bytes()).decode().split():
        ledger, entry, row = line.split(":")
        acknowledged.setdefault(f"{ledger}:{entry}", set()).add(int(row))
    assert len(said["rowsLeft"]) == said["partialEntries"] > 100
    for told in said["rowsLeft"]:
        entry, _, rows = told.partition(" rows ")
        left = {row for part in rows.split(", ") for row in span(part)}
        assert left | acknowledged[entry] == set(range(max(left | acknowledged[entry]) + 1)), entry
        assert not left & acknowledged[entry], entry


def span(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def test_a_new_cursor_says_where_it_is(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    run("create", "orders")
    assert run("cursor", "create", "orders", "early") == "early is at before the first entry, 0 rows left\n"
    assert "markDelete: before the first entry\n" in run("cursor", "describe", "orders", "early")
    assert run_json("cursor", "describe", "orders", "early")["markDelete"] == "-1:-1"
    connect(store).ledger("orders").append([{"id": 1}])
    assert run("cursor", "create", "orders", "late", "--start", "0:0") == "late is at 0:0, 1 row left\n"
    assert "markDelete: before the first entry of segment 0\n" in run("cursor", "describe", "orders", "late")
    assert "before the first entry" in run("cursor", "list", "orders")


def recorded(checkpoint: Path, offsets: dict[int, Any], *, committed: bool = True) -> Path:
    """Write the files of a batch as Spark does: a source of another format, then the ledger."""
    for number, offset in offsets.items():
        for folder in ("offsets", "commits"):
            (checkpoint / folder).mkdir(parents=True, exist_ok=True)
        lines = ["v1", '{"batchWatermarkMs":0}', '{"events":{"0":5}}', json.dumps(offset, sort_keys=True)]
        (checkpoint / "offsets" / str(number)).write_text("\n".join(lines))
        if committed:
            (checkpoint / "commits" / str(number)).write_text('v1\n{"nextBatchWatermarkMs":0}')
    return checkpoint


def test_a_checkpoint_is_shown_with_what_it_refers_to(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    orders, made = connect(store).ledger("orders"), tmp_path / "made"
    for number in range(40):
        orders.append(pa.table({"n": range(number, number + 100)}))
    start, known = orders.describe().start, orders.describe()
    place = {"entry": 30, "id": known.incarnation, "ledger": start.ledger_id}
    checkpoint = recorded(tmp_path / "plain", {0: {"ledgers": {orders.name: place}, "v": 1}})
    (plain,) = run_json("cursor", "show", str(checkpoint), "--export", str(made))["ledgers"]
    assert (plain["source"], plain["position"], plain["cursor"]) == (1, f"{start.ledger_id}:30", "")
    (file,) = made.rglob("*.entry")
    assert dumped_json("positioninfo", str(file))["markDelete"] == f"{start.ledger_id}:29"
    cursor = orders.cursor("billing", start)
    cursor.acknowledge_rows([(start.ledger_id, 2 * entry) for entry in range(1, 10)])
    request = NextDelivery(orders.name, "billing", 0, start, Position(start.ledger_id, 30), explicit=False)
    decided = connect(store).client.ask(request)
    assert decided.record
    place |= {"delivery": decided.record}
    checkpoint = recorded(
        tmp_path / "acks", {n: {"ledgers": {orders.name: place}, "v": 1} for n in (8, 10)}, committed=False
    )
    said = run_json("cursor", "show", str(checkpoint), "--export", str(tmp_path / "acks-made"))
    (found,) = said["ledgers"]
    assert (said["batch"], said["committed"], found["deliveryRecord"]) == (10, False, decided.record)
    assert found["deliveryRanges"]
    assert (found["chunks"], found["footer"]) == (1, None)
    (file,) = (tmp_path / "acks-made").rglob("*.entry")
    assert dumped_json("positioninfo", str(file))["acknowledgedEntries"] == 9
    assert "batch 10 is planned, and not committed" in run("cursor", "show", str(checkpoint))


def test_a_wrong_checkpoint_is_refused(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_STORE", str(store))
    orders = connect(store).ledger("orders")
    orders.append(pa.table({"n": [1]}))
    other = {"entry": 0, "id": "another", "ledger": 0}
    for name, offset, words in (
        ("other", {"ledgers": {orders.name: other}, "v": 1}, "is of incarnation another of ledger"),
        ("newer", {"ledgers": {orders.name: other}, "v": 9}, "offset has version 9"),
        ("kafka", {"events": {"0": 1}}, "has no offset of a ledger"),
    ):
        said = run("cursor", "show", str(recorded(tmp_path / name, {0: offset})), status=1)
        assert words in " ".join(said.split())
    assert "is no checkpoint with a batch" in " ".join(run("cursor", "show", str(tmp_path), status=1).split())
