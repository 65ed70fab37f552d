"""The offloader of a running store, as its settings say: loaded when it is first used, replaced when they change.

Rules
- This package does not import the one that implements the offloader. The broker gives the name.
- What was made of old settings is closed once others hold, and whoever had it asks here again.
- An address that no bucket can have is refused when it is set, before it is kept.
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
    """Answers the offloader of the moment. Any thread may call it."""

    def __init__(self, make: Make, settings: Settings) -> None:
        self._make = make
        self._settings = settings
        self._made: LedgerOffloader | None = None
        self._lock = threading.Lock()

    def __call__(self) -> LedgerOffloader:
        """The offloader; raises Refused when it cannot be made."""
        with self._lock:
            if self._made is None:
                self._made = self._make(self._settings)
            return self._made

    def change(self, settings: Settings) -> None:
        with self._lock:
            before, self._settings = self._settings, settings
            if _offloading(before) == _offloading(settings):
                return  # whoever reads by it now is not disturbed
            made, self._made = self._made, None
        if made is not None:
            made.close()

    def has_target(self) -> bool:
        """Whether anything may be offloaded at all."""
        return bool(self._settings.managedLedgerOffloadBucket)

    def prefers_remote(self) -> bool:
        """Whether a ledger that is here and there is read from there."""
        return self._settings.managedLedgerDataReadPriority == "tiered-storage-first"


def _offloading(settings: Settings) -> dict[str, object]:
    """What an offloader is made of; all of it, and nothing of cache or retention, is named so."""
    return {name: value for name, value in asdict(settings).items() if _NAMED in name.lower()}


def nothing_chosen() -> OffloaderChoice:
    """For a store without a broker of its own."""
    return OffloaderChoice(lambda _: NoOffloader(), Settings())


def made_by(name: str) -> Make:
    """Return a maker of the offloader that `module:function` makes of settings."""

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


def _called(name: str, given: object) -> Any:
    module, _, function = name.partition(":")
    try:
        return getattr(importlib.import_module(module), function)(given)
    except ImportError as missing:
        raise Refused(f"offloader {name!r} cannot be loaded: {missing}", hint="Install the whole package") from None
