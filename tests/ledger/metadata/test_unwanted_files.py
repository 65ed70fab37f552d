"""Goal: a file goes only when a record names it, and none is forgotten. Method: crashes between the steps of changes.

A crash is an exception where the process would have died, and the store as another broker opens it then.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pyspark_ledger.ledger.cursor.cursor_log import CursorLog
from pyspark_ledger.ledger.errors import LedgerError, Unavailable
from pyspark_ledger.ledger.metadata.cursor_records import CursorRecords
from pyspark_ledger.ledger.metadata.records import Metadata
from pyspark_ledger.ledger.metadata.unwanted_files import UnwantedFiles
from pyspark_ledger.ledger.position import Position
from pyspark_ledger.ledger.protocol.cursors import DeleteCursor, ResetCursor
from pyspark_ledger.ledger.segment.writer import SegmentWriter
from tests.rigs.cursors import CursorRig
from tests.rigs.log import MINUTE, LogRig


def records(rig: LogRig) -> dict[int, str]:
    return rig.store.metadata.unwanted_files.all()


def known(rig: LogRig) -> set[str]:
    """The files of every ledger that a record lists."""
    return {f"{one}{suffix}" for one in rig.store.metadata.ledger_ids() for suffix in (".ledger", ".index")}


def trim(rig: CursorRig) -> None:
    rig.retain(0, 0)
    rig.acknowledge("c", Position(4, 0))
    rig.now += MINUTE
    rig.store.ledger("log").trim()


def delete_ledger(rig: CursorRig) -> None:
    rig.ack((2, 1))
    rig.store.delete_ledger("log")


def delete_cursor(rig: CursorRig) -> None:
    rig.ack((2, 1))
    rig.store.cursors.delete(DeleteCursor("log", "c"))


def reset_cursor(rig: CursorRig) -> None:
    rig.ack((2, 1))
    rig.store.cursors.reset(ResetCursor("log", "c", Position(1, 0)))


def replace_cursors_ledger(rig: CursorRig) -> None:
    rig.ack((2, 1))
    rig.crash()
    rig.ack((2, 2))


CHANGES = [trim, delete_ledger, delete_cursor, reset_cursor, replace_cursors_ledger]


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_change_unlists_is_named_before_it_goes(
    rig: CursorRig, change: Callable[[CursorRig], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(UnwantedFiles, "_unlink", lambda *_: None)  # killed before it
    change(rig)
    monkeypatch.undo()
    left = {int(name.partition(".")[0]) for name in rig.files() - known(rig)}
    assert left
    assert {what for one, what in records(rig).items() if one in left} == {"all"}
    assert left <= records(rig).keys()
    rig.crash()
    assert rig.files() == known(rig)
    assert records(rig) == {}


@pytest.mark.parametrize("change", CHANGES)
def test_its_records_go_once_the_directory_is_synced(rig: CursorRig, change: Callable[[CursorRig], None]) -> None:
    change(rig)
    assert rig.files() == known(rig)
    assert records(rig)
    rig.store.upkeep.round()
    assert records(rig) == {}


@pytest.mark.parametrize(
    ("where", "method"),
    [(SegmentWriter, "create"), (Metadata, "update_ledger"), (CursorLog, "write_state"), (CursorRecords, "put")],
)
def test_what_was_made_and_never_listed_goes(
    rig: CursorRig, where: type, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed before and after the step: the file is there or not, and no list names it."""
    before, real = rig.files(), getattr(where, method)
    for after in (False, True):

        def die(*given: object, after: bool = after, **named: object) -> object:
            if after and where is not Metadata:
                real(*given, **named)
            raise Unavailable("killed")

        monkeypatch.setattr(where, method, staticmethod(die) if method == "create" else die)
        for use in (lambda: rig.append(b"new"), lambda: rig.ack((2, 1))):
            try:
                use()
            except LedgerError:
                continue
        monkeypatch.undo()
        rig.crash()
        assert rig.files() == known(rig)
        assert records(rig) == {}
    assert rig.files() >= before
    assert rig.ack((2, 1)).acknowledged_entries == 1


def test_a_ledger_of_a_cursor_is_named_though_the_first_try_failed(
    rig: CursorRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = CursorRecords.put

    def refuse(*_: object) -> None:
        raise Unavailable("the metadata's disk is full")

    monkeypatch.setattr(CursorRecords, "put", refuse)
    with pytest.raises(Unavailable):
        rig.ack((2, 1))
    monkeypatch.setattr(CursorRecords, "put", real)
    rig.ack((2, 2))
    rig.crash()
    assert rig.state().acknowledged_entries == 2


def test_a_file_with_acknowledged_entries_is_kept_though_it_was_only_made(
    rig: CursorRig, caplog: pytest.LogCaptureFixture
) -> None:
    """The metadata forgot that the ledger was listed: its rows are not thrown away for it."""
    (position,) = rig.append(b"precious")
    metadata, ledger_id = rig.store.metadata, position.ledger_id
    metadata._file.change(lambda c: c.execute("INSERT INTO unwanted_file_row VALUES (?, 'made')", (ledger_id,)))
    rig.crash()
    assert f"{ledger_id}.ledger" in rig.files(), "a segment of that id has a record still"
    rig.store.metadata._file.change(lambda c: c.execute("DELETE FROM segment_row WHERE ledger_id = ?", (ledger_id,)))
    rig.crash()
    assert f"{ledger_id}.ledger" in rig.files()
    assert f"no record lists segment {ledger_id}" in caplog.text
