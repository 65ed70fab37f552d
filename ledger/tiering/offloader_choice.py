"""Offloader of a running store: loaded at its first use, and replaced when its settings change.

The offloader copies sealed segments, the complete files of ledgers, to object storage.

Rules
- This package does not import the package that implements the offloader. The program passes the function that creates
  it.
- A change of settings closes the old offloader. The next use creates a new offloader.
- When a client sets the address of the bucket, the address is checked before it is stored. A trial there writes, reads,
  lists and deletes an object. If the check or the trial fails, the address is refused.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import asdict

from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader, NoOffloader

MakeOffloader = Callable[[Settings], LedgerOffloader]
_NAMED = "managedledgeroffload"


class OffloaderChoice:
    """Holder of the current offloader. Any thread may call any method."""

    def __init__(self, make: MakeOffloader, settings: Settings) -> None:
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
