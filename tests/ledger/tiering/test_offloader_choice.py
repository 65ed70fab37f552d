"""Goal: the offloader is the one that the settings say, and nobody who reads by it is disturbed by others. Method: an
offloader that knows whether it was closed.
"""

from __future__ import annotations

from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.offloader import NoOffloader
from pyspark_ledger.ledger.tiering.offloader_choice import OffloaderChoice


class KnownOffloader(NoOffloader):
    """Knows what it was made of, and that it is closed."""

    def __init__(self, settings: Settings) -> None:
        self.bucket = settings.managedLedgerOffloadBucket
        self.closed = False

    def close(self) -> None:
        """Noted."""
        self.closed = True


def test_a_setting_of_something_else_leaves_the_offloader_alone() -> None:
    choice = OffloaderChoice(KnownOffloader, Settings())
    made = choice()
    others = (
        {"managedLedgerCacheSizeMB": 1},
        {"cacheEvictionPolicy": "segmented"},
        {"brokerIdleTimeoutSeconds": 7},
        {"managedLedgerCacheEvictionTimeThresholdMillis": 7},
        {"retentionWaitsForOffload": 1},
    )
    for other in others:
        choice.change(Settings.of(other))  # type: ignore[arg-type]
    assert choice() is made
    assert isinstance(made, KnownOffloader)
    assert not made.closed


def test_one_of_its_own_makes_another_and_closes_the_first() -> None:
    choice = OffloaderChoice(KnownOffloader, Settings())
    for settings in ({"managedLedgerOffloadBucket": "s3://b"}, {"s3ManagedLedgerOffloadRole": "r"}, {}):
        made = choice()
        choice.change(Settings.of(settings))  # type: ignore[arg-type]
        assert isinstance(made, KnownOffloader)
        assert made.closed
        now = choice()
        assert isinstance(now, KnownOffloader)
        assert now.bucket == settings.get("managedLedgerOffloadBucket", "")


def test_what_was_changed_before_it_is_made_counts() -> None:
    choice = OffloaderChoice(KnownOffloader, Settings())
    choice.change(Settings.of({"managedLedgerDataReadPriority": "tiered-storage-first"}))
    assert choice.prefers_remote()
    assert not choice.has_target()
