"""Settings of a running broker: the values of its configuration file, and changes that a client made at run time.

    <store>/settings.json       {"name": number or text}: the changed settings only; each change rewrites the file
    manifest of a bucket        the same, as its field "settings"; the manifest is the object that names the broker

Rules
- A changed value overrides the configuration file. The broker checks both in the same way.
- A change is durable before the broker replies, and it survives a restart. Reason: a private broker, which a client
  starts, has no configuration file.
- A client can change only *live* settings, which the broker reads at each use. For any other setting, the error says to
  change the file and restart the broker.
- A client changes a setting only if its declaration allows that: see `Setting.by`. So no call names code.
- A client can request a trial of the new values. For the address of offloads, the trial writes and reads an object
  there.
- A broker does not start with an unknown setting in settings.json or the manifest. The error names the file or the
  bucket. A setting that an earlier version had and stored costs one line in the log.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self

import msgspec

from pyspark_ledger.ledger import disk
from pyspark_ledger.ledger.errors import Refused, Unauthenticated
from pyspark_ledger.ledger.json_errors import JSON_FAULTS, json_fault
from pyspark_ledger.ledger.protocol.actions import ChangeSetting, SettingState, SettingStates
from pyspark_ledger.ledger.settings.broker import SETTINGS, Settings, declared
from pyspark_ledger.ledger.settings.settings_file import without_effect

_FILE = "settings.json"
_CORRECT_FILE = "Correct or delete the file"
_SERVE = "ledger serve --config FILE"
_log = logging.getLogger(__name__)


class LiveSettings:
    """Settings that can change at any time. Callers must read `now` at each use."""

    def __init__(
        self,
        configured: Settings,
        changed: dict[str, int | str],
        keep: Callable[[dict[str, int | str]], None] = lambda _: None,
    ) -> None:
        """Override `configured` by `changed`. `keep` stores all changed settings after each change."""
        self._keep = keep
        self._configured = configured
        self._changed = changed
        self._lock = threading.Lock()
        self._checks: list[Callable[[Settings], object]] = []
        self._trials: list[Callable[[Settings], object]] = []
        self._listeners: list[Callable[[Settings], None]] = []
        self.now = configured.changed(changed)

    @classmethod
    def load(cls, store: Path, configured: Settings) -> Self:
        """Return the configured settings, overridden by the changed settings of a store.

        Raises Refused if the file of the changed settings is invalid. The error names the file.
        """
        changed = stored_changes(store)
        return cls.of(configured, changed, str(store / _FILE), _CORRECT_FILE, partial(store_changes, store))

    @classmethod
    def of(
        cls,
        configured: Settings,
        changed: dict[str, int | str],
        where: str,
        hint: str,
        keep: Callable[[dict[str, int | str]], None] = lambda _: None,
    ) -> Self:
        """Return the configured settings, overridden by the changed settings that are stored at `where`.

        A stored value of an operator's setting is never used. An earlier version stored such values. They are ignored
        if the operator's file sets the setting. Otherwise Refused is raised. Reason: without its credential provider, a
        broker would upload as another user.

        Raises Refused if a stored setting is unknown or has a wrong value.
        """
        try:
            changed = without_effect(changed, where)
            stated = [name for name in changed if _is_stated_by_operator(name, configured)]
            if stated:
                _log.warning("%s: ignored, because the broker's file sets them: %s", where, ", ".join(stated))
            kept = {name: value for name, value in changed.items() if name not in stated}
            for name in kept:
                _require_storable(name)
            return cls(configured, kept, keep)
        except Refused as wrong:
            raise Refused(f"{where}: {wrong.message}", hint=f"{wrong.hint}. {hint}".removeprefix(". ")) from wrong

    def keep_by(self, keep: Callable[[dict[str, int | str]], None]) -> None:
        """Store all changed settings with `keep` after each change."""
        self._keep = keep

    def before_change(self, check: Callable[[Settings], object]) -> None:
        """Call `check` with the new settings before each change.

        If `check` raises an error, the change raises it too.
        """
        self._checks.append(check)

    def on_trial(self, trial: Callable[[Settings], object]) -> None:
        """Call `trial` with the new settings before a change whose request asks for a trial.

        If `trial` raises an error, the change raises it too.
        """
        self._trials.append(trial)

    def on_change(self, listener: Callable[[Settings], None]) -> None:
        """Call `listener` after each change. For components that cannot read the setting at each use."""
        self._listeners.append(listener)

    def change(self, request: ChangeSetting, *, owner: bool) -> SettingStates:
        """Change several settings in one step. A value of None restores the configured value.

        `owner`: the request came from the user as whom the broker runs. Raises Unauthenticated if a setting belongs to
        this user, and the request came from elsewhere. Raises Refused if a check refuses one of the values. With
        `request.trial`, raises the error of a failed trial. After an error, no setting is changed.
        """
        wanted = {**request.others, request.name: request.value}
        for name in wanted:
            _require_changeable(name, owner=owner)
        with self._lock:
            merged = {**self._changed, **wanted}
            changed = {name: value for name, value in merged.items() if value is not None}
            now = self._configured.changed(changed)
            for check in [*self._checks, *(self._trials if request.trial else [])]:
                check(now)
            self._keep(changed)
            self._changed, self.now = changed, now
            for listener in self._listeners:
                listener(now)
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


def _is_stated_by_operator(name: str, configured: Settings) -> bool:
    """Return whether the operator's file sets a setting that only the operator may set."""
    setting = declared(name)
    return setting.by == "operator" and getattr(configured, name) != setting.default


def _require_storable(name: str) -> None:
    if declared(name).by == "operator":
        raise Refused(
            f"setting {name!r} is stored here, but only the file with which the broker starts may set it",
            hint=f"If you know the value, set it in a file, and run: {_SERVE}",
        )


def _require_changeable(name: str, *, owner: bool) -> None:
    """Raise Refused if no call may change a setting, and Unauthenticated if only a call of the owner may."""
    setting = declared(name)
    if setting.by == "operator":
        raise Refused(
            f"setting {name!r} cannot be changed while the broker runs",
            hint=f"Set it in a file, and restart the broker with this file: {_SERVE}",
        )
    if setting.by == "owner" and not owner:
        raise Unauthenticated(
            f"setting {name!r} cannot be changed from this address: another value {setting.risk}",
            hint=f"Change it as the user of the broker, with the store's directory. Or set it in a file: {_SERVE}",
        )


def stored_changes(store: Path) -> dict[str, int | str]:
    """Return the changed settings in the file of a store. Raises Refused if the file is invalid."""
    path = store / _FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=dict[str, int | str])
    except FileNotFoundError:
        return {}
    except JSON_FAULTS as wrong:
        raise Refused(f"{path}: {json_fault(wrong)}", hint=_CORRECT_FILE) from wrong


def store_changes(store: Path, changed: dict[str, int | str]) -> None:
    """Write the changed settings to the file of a store. Durable on return."""
    disk.replace_file(store / _FILE, msgspec.json.encode(changed))
