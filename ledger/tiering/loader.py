"""Offloader of a running store: loaded on first use, replaced when its settings change.

Rules
- This package does not import the one that implements the offloader. The broker gives the name.
- A change of settings closes the old offloader. Its users then ask for the new one.
- An address that no bucket can have is refused when it is set, before it is kept.
- With a trial, so is an address that cannot be written, read, listed or deleted from.
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
    """Provider of the present offloader. Any thread may call it."""

    def __init__(self, make: Make, settings: Settings) -> None:
        self._make = make
        self._settings = settings
        self._made: LedgerOffloader | None = None
        self._lock = threading.Lock()

    def __call__(self) -> LedgerOffloader:
        """Return the offloader. Raises Refused if it cannot be created."""
        with self._lock:
            if self._made is None:
                self._made = self._make(self._settings)
            return self._made

    def change(self, settings: Settings) -> None:
        with self._lock:
            before, self._settings = self._settings, settings
            if _offloading(before) == _offloading(settings):
                return  # present readers are not disturbed
            made, self._made = self._made, None
        if made is not None:
            made.close()

    def has_target(self) -> bool:
        """Return whether a target is configured."""
        return bool(self._settings.managedLedgerOffloadBucket)

    def prefers_remote(self) -> bool:
        """Return whether a segment with a local copy is read from object storage."""
        return self._settings.managedLedgerDataReadPriority == "tiered-storage-first"


def _offloading(settings: Settings) -> dict[str, object]:
    """Return the settings of the offloader, which are recognized by name."""
    return {name: value for name, value in asdict(settings).items() if _NAMED in name.lower()}


def nothing_chosen() -> OffloaderChoice:
    """Return the choice of a store without a broker of its own."""
    return OffloaderChoice(lambda _: NoOffloader(), Settings())


def made_by(name: str) -> Make:
    """Return a maker of the offloader, by the function `module:function` of the settings."""

    def make(settings: Settings) -> LedgerOffloader:
        made: LedgerOffloader = _called(name, settings)
        return made

    return make


def address_checked_by(name: str) -> Callable[[Settings], None]:
    """Return a check of the offloader's address by `module:function`, which raises Refused for a wrong address."""

    def check(settings: Settings) -> None:
        if settings.managedLedgerOffloadBucket:
            _called(name, settings.managedLedgerOffloadBucket)

    return check


def tried_by(name: str) -> Callable[[Settings], None]:
    """Return the trial of the offloader's address by `module:function`, which raises the error of a failed trial."""
    return lambda settings: _called(name, settings)


def _called(name: str, given: object) -> Any:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(given)
    except ImportError as missing:
        raise Refused(f"offloader {name!r} cannot be loaded: {missing}", hint="Install the whole package") from None
