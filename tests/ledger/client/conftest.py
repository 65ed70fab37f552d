"""Brokers as processes, and what is asked of them: see `tests.rigs.broker`."""

from __future__ import annotations

from tests.rigs.broker import make_entry, read_log, rig, run_directory, session_run_directory, shared_rig
from tests.rigs.broker_thread import served_store as store
from tests.rigs.bucket_clients import directory

__all__ = [
    "directory",
    "make_entry",
    "read_log",
    "rig",
    "run_directory",
    "session_run_directory",
    "shared_rig",
    "store",
]
