"""Entry point of the broker process: the broker of `ledger`, with the offloader of this package.

python -m pyspark_ledger.offload.broker --store DIR …        `ledger.broker.main` states the options
"""

from __future__ import annotations

from pyspark_ledger.ledger.broker import main as broker
from pyspark_ledger.ledger.settings.broker import Settings
from pyspark_ledger.ledger.tiering.offloader import LedgerOffloader


def make_offloader(settings: Settings) -> LedgerOffloader:
    """Return an offloader with these settings."""
    # Imported here, because a broker without a bucket has no offloader, and starts faster without these modules.
    from pyspark_ledger.offload.offloader import offloader_of

    return offloader_of(settings)


def main(arguments: list[str] | None = None) -> int:
    """Run a broker until it exits. Return the exit status of the process."""
    return broker.main(make_offloader, arguments)


if __name__ == "__main__":
    broker.run(main)
