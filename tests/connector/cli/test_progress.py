"""Goal: long commands show a bar in a terminal, and nothing of it anywhere else. Method: the command with a pseudo
terminal as its standard error, and with pipes.
"""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from pyspark_ledger.ledger.api.store import LedgerStore
from tests.rigs.broker_thread import served_store as store

__all__ = ["store"]


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "pyspark_ledger.connector.cli.app", *arguments]


def in_terminal(*arguments: str) -> tuple[str, str]:
    """Run a command whose standard error is a terminal and whose output is a pipe. Return both texts."""
    controller, terminal = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "160"}
    with subprocess.Popen(command(*arguments), stdout=subprocess.PIPE, stderr=terminal, env=environment) as process:
        os.close(terminal)
        shown = bytearray()
        try:
            while piece := os.read(controller, 65536):
                shown += piece
        except OSError:
            pass  # Linux reports the end of a terminal as an error
        assert process.stdout is not None
        printed = process.stdout.read().decode()
    os.close(controller)
    assert process.returncode == 0, shown.decode()
    return printed, re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.decode())


def piped(*arguments: str) -> tuple[str, str]:
    done = subprocess.run(command(*arguments), capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


@pytest.fixture
def filled(store: LedgerStore, store_path: Path, tmp_path: Path) -> list[str]:
    """Return the options of a store with two ledgers and a bucket."""
    store.offload_to(tmp_path / "bucket")
    for name in ("orders", "clicks"):
        ledger = store.ledger(name)
        for number in range(3):
            ledger.append([{"id": number}])
            ledger.seal()
    return ["--store", str(store_path)]


@pytest.mark.thorough
def test_verify_counts_the_entries_of_all_ledgers_in_a_terminal(filled: list[str]) -> None:
    printed, shown = in_terminal("verify", *filled)
    assert printed == "6 entries verified\n"
    assert re.search(r"verify .*6 of 6 entries, orders", shown)


@pytest.mark.thorough
def test_offload_counts_bytes_in_a_terminal(filled: list[str]) -> None:
    printed, shown = in_terminal("offload", "orders", *filled)
    assert printed.startswith("public/default/persistent/orders: done; 3 segments in this run")
    assert re.search(r"offload orders .*KiB of [\d.]+ KiB", shown)


@pytest.mark.parametrize("words", [["verify"], ["offload", "orders"]])
@pytest.mark.thorough
def test_a_pipe_and_json_get_no_bar(filled: list[str], words: list[str]) -> None:
    printed, shown = piped(*words, *filled)
    assert shown == ""
    assert printed.count("\n") == 1
    printed, shown = in_terminal(*words, *filled, "--output", "json")
    assert shown == ""
    assert printed.startswith("{")
