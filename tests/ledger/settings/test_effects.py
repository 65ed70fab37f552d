"""Goal: no setting is without effect, from the file, from `settings set`, and after a restart; to hard-wire any of them
to its default fails here. Method: a table of all settings. Each row asks a broker that is wired as in its process.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from pyspark_ledger.ledger.errors import Refused
from pyspark_ledger.ledger.settings.broker import SETTINGS
from tests.ledger.settings import (
    bucket_effects,
    cache_effects,
    cursor_effects,
    log_effects,
    offload_effects,
    service_effects,
)
from tests.rigs.broker import run_directory, session_run_directory
from tests.rigs.certificates import certificates
from tests.rigs.driven_broker import Drive, DrivenBroker, Drives, Value
from tests.rigs.recording_s3 import RecordingS3

__all__ = ["run_directory", "session_run_directory"]
DRIVES: Drives = {
    name: drives
    for area in (log_effects, cursor_effects, offload_effects, bucket_effects, cache_effects, service_effects)
    for name, drives in area.DRIVES.items()
}
CASES = [
    pytest.param(name, drive, id=f"{name}-{number}")
    for name, drives in DRIVES.items()
    for number, drive in enumerate(drives)
]


class Stage:
    """Brokers of one test, one after the other."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self._folder, self._patch = folder, patch
        self._s3 = RecordingS3(folder, patch)
        self._broker: DrivenBroker | None = None
        self._count = 0

    def seen(
        self,
        drive: Drive,
        settings: Mapping[str, Value],
        change: Mapping[str, Value] | None = None,
        *,
        fresh: bool = True,
    ) -> object:
        """Return the observation of a broker of a new store, or of the store before, after a `change` of settings.

        `refused`: the broker does not start.
        """
        self.close()
        self._count += fresh
        try:
            self._broker = DrivenBroker(
                self._folder / str(self._count), self._texts({**drive.also, **settings}), self._patch
            )
        except Refused:
            return "refused"
        for name, value in self._texts(change or {}).items():
            self._broker.set(name, value)
        self._broker.s3 = self._s3
        self._s3.requests.clear()
        return drive.observe(self._broker)

    def _texts(self, settings: Mapping[str, Value]) -> dict[str, Value]:
        return {name: self._text(value) for name, value in settings.items()}

    def _text(self, value: Value) -> Value:
        folder = self._folder / f"objects{self._count}"
        if not isinstance(value, str) or "{" not in value:
            return value
        return value.format(folder=folder, port=self._s3.port, **certificates())

    def end(self) -> None:
        self.close()
        self._s3.close()

    def close(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Stage]:
    stage = Stage(tmp_path, monkeypatch)
    yield stage
    stage.end()


def test_every_setting_is_driven() -> None:
    assert DRIVES.keys() == SETTINGS.keys()
    for name, drives in DRIVES.items():
        assert all(SETTINGS[name].default not in drive.seen for drive in drives)
        assert all(drive.default != seen for drive in drives for seen in drive.seen.values())


@pytest.mark.parametrize(("name", "drive"), CASES)
def test_a_setting_has_its_effect(stage: Stage, name: str, drive: Drive) -> None:
    assert stage.seen(drive, {}) == drive.default
    for value, expected in drive.seen.items():
        if SETTINGS[name].live:
            assert stage.seen(drive, {}, {name: value}) == expected, "after `settings set`"
            assert stage.seen(drive, {}, fresh=False) == expected, "after a restart"
        assert stage.seen(drive, {name: value}) == expected, "from the file"
