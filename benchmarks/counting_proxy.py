"""TCP proxy in a process of its own that counts the bytes that a server has served.

    with CountingProxy("127.0.0.1", 8333) as proxy:
        … the client talks to 127.0.0.1:proxy.port …
        proxy.served()

The proxy parses nothing: the count includes bodies and headers. It ends with the process that started it.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Self

_PIECE = 1024 * 1024
ROOT = Path(__file__).parent.parent


class CountingProxy:
    """Proxy that listens on loopback at `port`."""

    def __init__(self, host: str, port: int) -> None:
        command = [sys.executable, "-m", "benchmarks.counting_proxy", host, str(port)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.port = self._answer()

    def served(self) -> int:
        """Return the bytes that the server sent so far."""
        assert self._process.stdin is not None  # noqa: S101 — for the types
        self._process.stdin.write("count\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> int:
        assert self._process.stdout is not None  # noqa: S101 — for the types
        return int(self._process.stdout.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None  # noqa: S101 — for the types
        self._process.stdin.close()
        self._process.wait()


class _Proxy:
    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._served = 0

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        server = await asyncio.start_server(self._connected, "127.0.0.1", 0, limit=_PIECE)
        print(server.sockets[0].getsockname()[1], flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(self._served, flush=True)
        os._exit(0)  # open connections have lost their server anyway

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, there = await asyncio.open_connection(*self._target, limit=_PIECE)
        await asyncio.gather(self._pass(reader, there), self._pass(back, writer, counting=True))

    async def _pass(self, source: asyncio.StreamReader, to: asyncio.StreamWriter, *, counting: bool = False) -> None:
        try:
            while piece := await source.read(_PIECE):
                if counting:
                    self._served += len(piece)
                to.write(piece)
                await to.drain()
        except OSError:
            pass
        finally:
            to.close()


if __name__ == "__main__":
    asyncio.run(_Proxy(sys.argv[1], int(sys.argv[2])).run())
