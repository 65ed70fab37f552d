"""Wait, with a deadline, for another thread or process."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(condition: Callable[[], object], what: str = "", seconds: float = 60, *, every: float = 0.005) -> None:
    """Return when the condition holds. Fail with a message that names `what` if it does not hold after `seconds`."""
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, f"waited {seconds} s in vain: {what}"
        time.sleep(every)
