"""Deadline for a call that may hang, such as a connection that a platform drops silently."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LETTERS_MAX = 240


def within(seconds: float, call: Callable[[], T]) -> T:
    """Return the result of `call`, which runs on a daemon thread. Raises its error, or TimeoutError after `seconds`.

    After a TimeoutError the call continues on its thread, because Python cannot end a thread. Its result is ignored.
    Raises RuntimeError if the call tries to end the process.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001  # raised on the caller's thread
            errors.append(error)

    thread = threading.Thread(target=run, name="ledger-doctor", daemon=True)
    thread.start()
    thread.join(seconds)
    if errors and not isinstance(errors[0], Exception):
        # Spark Connect without pandas calls `sys.exit`, which must not end the report.
        raise RuntimeError(f"the call ended with {type(errors[0]).__name__}") from errors[0]
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return results[0]


def error_text(error: BaseException) -> str:
    """Return an error in one line: the system's text, or the class and the first line of the message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
    return str(error) if isinstance(error, OSError) and lines else text[:_LETTERS_MAX]
