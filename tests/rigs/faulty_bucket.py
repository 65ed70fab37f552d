"""Bucket in a directory with faults at given keys: requests that fail before or after they arrive, and other actions.

    faults.on("put", "manifest", lost, times=1)     the manifest is put, and the answer is lost

`tests.rigs.fault_proxy` has more faults, in front of a real S3 server and for concurrent requests. With this module, a
test decides at which request of a thread a fault happens.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyspark_ledger.ledger.errors import Unauthenticated, Unavailable
from pyspark_ledger.ledger.objects.object_store import ObjectStore

Call = Callable[[], Any]


def lost(call: Call) -> Any:
    """Send the request, and lose its answer."""
    call()
    raise Unavailable("the answer was lost")


def refused(_: Call) -> Any:
    raise Unauthenticated("S3 answers 403")


def unavailable(_: Call) -> Any:
    raise Unavailable("S3 answers 503 SlowDown")


@dataclass
class _Fault:
    method: str
    prefix: str
    effect: Callable[[Call], Any]
    left: int


class FaultyBucket:
    """Bucket of a broker. `met` counts the faults that happened."""

    def __init__(self) -> None:
        self.met = 0
        self._faults: list[_Fault] = []

    def on(self, method: str, prefix: str, effect: Callable[[Call], Any], times: int = 1) -> None:
        self._faults.append(_Fault(method, prefix, effect, times))

    def heal(self) -> None:
        self._faults.clear()

    def before(self, place: ObjectStore) -> Any:
        """Return the bucket with these faults."""
        owner = self

        class Faulty:
            def __getattr__(self, name: str) -> Any:
                found = getattr(place, name)
                if not callable(found):
                    return found
                return lambda *values, **named: owner._call(name, values, lambda: found(*values, **named))

        return Faulty()

    def _call(self, method: str, values: tuple[Any, ...], call: Call) -> Any:
        key = str(values[0]) if values else ""
        for fault in self._faults:
            if fault.left and fault.method == method and key.startswith(fault.prefix):
                fault.left -= 1
                self.met += 1
                return fault.effect(call)
        return call()
