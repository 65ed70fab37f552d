"""The broker process. It opens a store, serves it, and exits on a signal or when it is idle.

    python -m pyspark_ledger.offload.broker --store DIR [--address ADDRESS] [--create] [--config FILE]
    [--web ADDRESS] [--idle SECONDS] [--take-over {moved,copied,broker}]

Rules
- The program `offload.broker` passes the function that creates the offloader, which this package does not know.
- The broker writes its address to `<store>/broker.json` when it can answer calls.
- If the broker cannot open the store, it prints the error on standard error and exits with status 2.
- After SIGTERM or SIGINT the broker completes all queued appends and exits with status 0.
- If another broker takes the store over, this broker writes nothing more to the store and exits with status 0.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from pyspark_ledger.ledger.broker.process import CANNOT_START, BrokerProcess, leave_at_once
from pyspark_ledger.ledger.errors import LedgerError
from pyspark_ledger.ledger.logs.json_lines import log_broker_as
from pyspark_ledger.ledger.ownership import OwnerChange
from pyspark_ledger.ledger.tiering.offloader_choice import MakeOffloader

# Interval after which a computing thread gives up the interpreter lock. It is short, so that a thread gets the lock
# soon after its fsync, even while another thread computes a checksum.
_SWITCH_SECONDS = 0.0002
_log = logging.getLogger("pyspark_ledger.ledger.broker")


def main(make_offloader: MakeOffloader, arguments: list[str] | None = None) -> int:
    """Run a broker until it exits. Return the exit status of the process."""
    options = _parser().parse_args(arguments)
    os.umask(0o077)  # only this user may use sockets, logs and other new files
    sys.setswitchinterval(_SWITCH_SECONDS)
    log_broker_as("text")
    try:
        broker = BrokerProcess.open(options, make_offloader)
    except (LedgerError, OSError) as error:
        print(error, file=sys.stderr, flush=True)  # noqa: T201 — the process that started the broker reads it
        return CANNOT_START
    broker.serve(options.idle)
    broker.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m pyspark_ledger.offload.broker", description="Serve one ledger store."
    )
    parser.add_argument("--store", type=Path, required=True, help="directory of the store")
    parser.add_argument("--address", help="listening address, instead of the setting bindAddress")
    parser.add_argument("--web", help="address of the HTTP service, instead of the setting webServiceAddress")
    parser.add_argument("--create", action="store_true", help="create the store if the directory has none")
    changes = [change.value for change in OwnerChange]
    parser.add_argument("--take-over", choices=changes, help="why the store belongs to another broker, host or place")
    parser.add_argument("--config", type=Path, help="file of settings, see conf/broker.toml")
    parser.add_argument("--idle", type=int, help="exit after this many seconds without a call; 0: do not exit")
    return parser


def run(program: Callable[[], int]) -> NoReturn:
    """Run the program of a broker, and end this process with the status that the program returns."""
    status = 1
    try:
        status = program()
    except Exception:  # noqa: BLE001 — a normal exit would wait for Flight's open streams
        _log.exception("the broker exits with an unexpected error")
    finally:
        leave_at_once(status)
