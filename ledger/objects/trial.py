"""Trial of an offload address: a small object is written, read, listed and deleted before the address is set.

Rules
- The key of the test object has another form than the keys of segments. So readers ignore the test object.
- Each request is tried twice, with short time limits, so that a wrong endpoint is reported within seconds.
- The raised error names the steps that worked and the step that failed. It has the class of the failed step's error.
  Exception: Unavailable becomes Refused, because a client would repeat a call that raises Unavailable.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pyspark_ledger.ledger.clock import new_id
from pyspark_ledger.ledger.errors import Corrupt, LedgerError, Refused, Unavailable
from pyspark_ledger.ledger.objects.factory import open_object_store
from pyspark_ledger.ledger.objects.from_settings import s3_options_of
from pyspark_ledger.ledger.objects.object_store import ObjectStore
from pyspark_ledger.ledger.settings.broker import Settings

_ATTEMPTS, _CONNECT_MS, _READ_MS = 2, 3_000, 10_000
_UNTRIED = "offload_to(…, check=False) sets the address without a trial"
_DATA = b"This object tested the offload address. You can delete it."


def try_address(settings: Settings) -> None:
    """Write, read, list and delete an object at the address of the settings. Does nothing if no address is set.

    Raises an error at the first step that fails.
    """
    if not settings.managedLedgerOffloadBucket:
        return
    options = replace(
        s3_options_of(settings), attempts=_ATTEMPTS, connect_timeout_ms=_CONNECT_MS, read_timeout_ms=_READ_MS
    )
    store = open_object_store(settings.managedLedgerOffloadBucket, options)
    try:
        _try(store, f"ledger-trial-{new_id()}")
    finally:
        store.close()


def _try(store: ObjectStore, key: str) -> None:
    steps: dict[str, Callable[[], object]] = {
        "write": lambda: store.put(key, _DATA),
        "read": lambda: _require_same(store.get(key, len(_DATA)).data, key),
        "list": lambda: list(store.objects(key)),
        "delete": lambda: store.delete([key]),
    }
    passed = list[str]()
    for step, call in steps.items():
        try:
            call()
        except LedgerError as error:
            kind = Refused if isinstance(error, Unavailable) else type(error)
            raise kind(_report(store, key, passed, step, error.message), hint=_hint(error)) from None
        except OSError as error:  # raised by a bucket that is a directory
            raise Refused(_report(store, key, passed, step, str(error)), hint=_UNTRIED) from None
        passed.append(step)


def _require_same(data: bytes, key: str) -> None:
    if data != _DATA:
        raise Corrupt(f"{key} has {len(data)} bytes that differ from the {len(_DATA)} bytes that were written")


def _report(store: ObjectStore, key: str, passed: list[str], step: str, reason: str) -> str:
    leftover = f"; the object {key} was not deleted" if passed else ""
    worked = f"{', '.join(passed)} worked, " if passed else ""
    return f"{store.address} was tried and is not set: {worked}{step} failed: {reason}{leftover}"


def _hint(error: LedgerError) -> str:
    return f"{error.hint}. {_UNTRIED}" if error.hint else _UNTRIED
