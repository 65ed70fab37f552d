"""Keys of a terminal, without waiting for the return key.

Rule: the end of the `with` block restores the terminal's modes, also after an error or Ctrl-C.
"""

from __future__ import annotations

import os
import select
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_ARROWS = {b"\x1b[A": "up", b"\x1b[B": "down", b"\x1bOA": "up", b"\x1bOB": "down", b"\x1b": "escape"}


@contextmanager
def keyboard(descriptor: int) -> Iterator[Keyboard]:
    """Yield the reader of a terminal's keys. During the `with` block, the terminal does not echo keys."""
    modes = termios.tcgetattr(descriptor)
    try:
        tty.setcbreak(descriptor)
        yield Keyboard(descriptor)
    finally:
        termios.tcsetattr(descriptor, termios.TCSADRAIN, modes)


class Keyboard:
    """Reader of keys."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def keys(self, seconds: float) -> list[str]:
        """Wait for at most `seconds`, and return the pressed keys; `up`, `down` and `escape` by name.

        Returns `q` if the terminal is closed.
        """
        if not select.select([self._descriptor], [], [], max(seconds, 0))[0]:
            return []
        data = os.read(self._descriptor, 256)
        if not data:
            return ["q"]  # the terminal is closed
        return [_ARROWS[data]] if data in _ARROWS else list(data.decode(errors="ignore"))
