"""Offloader of a running store: loaded at its first use, and replaced when its settings change.

The offloader copies sealed segments, the complete files of ledgers, to object storage.

Rules
- This package does not import the package that implements the offloader. The broker passes the names of functions.
- A change of settings closes the old offloader. The next use creates a new offloader.
- When a client sets the address of the bucket, the address is checked before it is stored. A trial there writes, reads,
  lists and deletes an object. If the check or the trial fails, the address is refused.
"""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader, NoOffloader

Make = Callable[[Settings], LedgerOffloader]
_NAMED = "managedledgeroffload"


class OffloaderChoice:
    """Holder of the current offloader. Any thread may call any method."""

    def __init__(self, make: Make, settings: Settings) -> None:
        self._make = make
        self._settings = settings
        self._offloader: LedgerOffloader | None = None
        self._lock = threading.Lock()

    def __call__(self) -> LedgerOffloader:
        """Return the offloader. Raises Refused if it cannot be created."""
        with self._lock:
            if self._offloader is None:
                self._offloader = self._make(self._settings)
            return self._offloader

    def change(self, settings: Settings) -> None:
        """Use these settings. Close the offloader if one of its settings has changed."""
        with self._lock:
            before, self._settings = self._settings, settings
            if _offloading(before) == _offloading(settings):
                return
            offloader, self._offloader = self._offloader, None
        if offloader is not None:
            offloader.close()

    def has_target(self) -> bool:
        """Return whether a bucket is configured."""
        return bool(self._settings.managedLedgerOffloadBucket)

    def prefers_remote(self) -> bool:
        """Return whether an offloaded segment is read from object storage although it has a local copy."""
        return self._settings.managedLedgerDataReadPriority == "tiered-storage-first"


def _offloading(settings: Settings) -> dict[str, object]:
    """Return the settings of the offloader: those with `managedLedgerOffload` in their name."""
    return {name: value for name, value in asdict(settings).items() if _NAMED in name.lower()}


def no_offloader() -> OffloaderChoice:
    """Return a choice without an offloader, for a process that opens a store without a broker."""
    return OffloaderChoice(lambda _: NoOffloader(), Settings())


def made_by(name: str) -> Make:
    """Return a function that creates the offloader by calling `name`, written `module:function`."""

    def make(settings: Settings) -> LedgerOffloader:
        offloader: LedgerOffloader = called(name, settings)
        return offloader

    return make


def address_checked_by(name: str) -> Callable[[Settings], None]:
    """Return a function that calls `name` with the bucket's address. Raises Refused if the address is invalid."""

    def check(settings: Settings) -> None:
        if settings.managedLedgerOffloadBucket:
            called(name, settings.managedLedgerOffloadBucket)

    return check


def tried_by(name: str) -> Callable[[Settings], None]:
    """Return a function that calls `name` to try the bucket's address. Raises the error of a failed trial."""
    return lambda settings: called(name, settings)


def called(name: str, given: object) -> Any:
    """Call a function by its name `module:function`, and return the result. Raises Refused if the module is missing."""
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(given)
    except ImportError as missing:
        raise Refused(f"offloader {name!r} cannot be loaded: {missing}", hint="Install the whole package") from None
