"""The settings of a running broker: what its file says, and over it what was changed while it ran.

    <store>/settings.json       {"name": number or text}, replaced whole; what was changed, and nothing else

Rules
- A change is checked as in a file, is durable before it is answered, and outlives the broker: a private broker has no
  file of settings, so this is where its settings are.
- Only what is read again at each use can be changed; the rest is refused, saying that it takes a restart.
- What a newer version left there and this one does not know is refused at the start, naming the file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Self

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, SettingState, SettingStates
from pyspark_ledger.ledger.settings.broker import SETTINGS, Settings, declared

_FILE = "settings.json"


class LiveSettings:
    """Settings that change. Whoever reads `now` must do so at each use."""

    def __init__(self, path: Path | None, configured: Settings, changed: dict[str, int | str]) -> None:
        self._path = path
        self._configured = configured
        self._changed = changed
        self._lock = threading.Lock()
        self._checks: list[Callable[[Settings], object]] = []
        self._told: list[Callable[[Settings], None]] = []
        self.now = configured.changed(changed)

    @classmethod
    def load(cls, store: Path, configured: Settings) -> Self:
        """What was changed in this store, over what is configured. Raises Refused naming the file for nonsense."""
        path = store / _FILE
        try:
            changed = msgspec.json.decode(path.read_bytes(), type=dict[str, int | str])
            for name in changed:
                _require_live(name)
            return cls(path, configured, changed)
        except FileNotFoundError:
            return cls(path, configured, {})
        except (*JSON_FAULTS, Refused) as wrong:
            raise Refused(f"{path}: {json_fault(wrong)}", hint="Correct or delete the file") from wrong

    def before_change(self, check: Callable[[Settings], object]) -> None:
        """Call `check` with the settings that a change would make. The change is refused if `check` raises Refused."""
        self._checks.append(check)

    def on_change(self, tell: Callable[[Settings], None]) -> None:
        """Call `tell` after each change, for what cannot look at each use."""
        self._told.append(tell)

    def change(self, request: ChangeSetting) -> SettingStates:
        """Change settings in one step; one without a value goes back to what is configured. Refused changes none."""
        wanted = {**request.others, request.name: request.value}
        for name in wanted:
            _require_live(name)
        with self._lock:
            given = {**self._changed, **wanted}
            changed = {name: value for name, value in given.items() if value is not None}
            now = self._configured.changed(changed)
            for check in self._checks:
                check(now)
            if self._path is not None:
                _replace(self._path, changed)
            self._changed, self.now = changed, now
            for tell in self._told:
                tell(now)
        return self.describe()

    def describe(self) -> SettingStates:
        states = [
            SettingState(
                name=name,
                value=getattr(self.now, name),
                default=setting.default,
                unit=setting.unit,
                reason=setting.reason,
                live=setting.live,
                changed=name in self._changed,
            )
            for name, setting in SETTINGS.items()
        ]
        return SettingStates(states)


def _require_live(name: str) -> None:
    if not declared(name).live:
        raise Refused(
            f"setting {name!r} cannot be changed while the broker runs", hint="Put it into the file and restart it"
        )


def _replace(path: Path, changed: dict[str, int | str]) -> None:
    scratch = path.with_name(f"{path.name}.{os.getpid()}")
    scratch.unlink(missing_ok=True)
    fd = disk.create_file(scratch)
    try:
        disk.write_all(fd, [msgspec.json.encode(changed)], 0, scratch)
        os.fsync(fd)
    finally:
        os.close(fd)
    scratch.rename(path)
    disk.sync_directory(path.parent)
