"""Calls of one store from an event loop: a few threads that make them, and one wake-up of the event loop for many.

    event loop ── start ──▶ thread of the store ──▶ a call of `ledger.api`
               ◀── post ───  (one `call_soon_threadsafe` for all results that are ready)

Rules
- The event loop makes no call that can block. At most `THREADS` calls of a store run at the same time.
- A store belongs to the event loop and the process that connected it. Others get Refused.
- A cancelled call goes on in its thread, and its result is dropped. So it is done as a whole, or not at all.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from pyspark_ledger.ledger.errors import Refused

THREADS = 8
# Threads for the steps of loops. With eight, they took a third more CPU: Python runs one thread at a time.
STEP_THREADS = 3

P = ParamSpec("P")
R = TypeVar("R")


class Waiting(Protocol):
    """Loop whose step can end with an error."""

    def settle(self, filled: bool, error: BaseException | None = None) -> None: ...


class Calls:
    """Calls of one store. Made in the event loop that the store belongs to."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._pid = os.getpid()
        self._pool = ThreadPoolExecutor(THREADS, "ledger-aio")
        self._steps = ThreadPoolExecutor(STEP_THREADS, "ledger-aio-loop")
        self._posted: deque[Callable[[], object]] = deque()
        self._scheduled = False
        self.ended = False
        self.waiting: set[Waiting] = set()
        """Loops with a task that waits for a batch."""

    def require_own_loop(self) -> None:
        """Raise Refused in another process or event loop than the store's."""
        hint = "Connect in each process and in each event loop: `async with connect() as store`"
        if self._pid != os.getpid():
            raise Refused(f"the store was opened in process {self._pid}, process {os.getpid()} uses it", hint=hint)
        if (running := asyncio.get_running_loop()) is not self.loop:
            raise Refused(f"the store was opened in the event loop {self.loop}, {running} uses it", hint=hint)

    def require_open(self) -> None:
        """Raise Refused after the end of the store."""
        if self.ended:
            raise _closed()

    def start(self, call: Callable[[], R]) -> asyncio.Future[R]:
        """Begin a call in a thread. The future has its result. Raises Refused after the end of the store."""
        self.require_own_loop()
        self.require_open()
        future: asyncio.Future[R] = self.loop.create_future()
        self._pool.submit(self._make, call, future)
        return future

    def post(self, callback: Callable[[], object]) -> None:
        """Let the event loop run a callback soon. Any thread and any signal handler may call it: it takes no lock."""
        self._posted.append(callback)
        if not self._scheduled:
            self._scheduled = True
            with suppress(RuntimeError):  # the event loop has ended, and nobody waits any more
                self.loop.call_soon_threadsafe(self._run_posted)

    def submit(self, step: Callable[[], object]) -> None:
        """Make a step of a loop in a thread. Any thread may call this method."""
        with suppress(RuntimeError):  # the store has been closed
            self._steps.submit(step)

    def drop(self, call: Callable[[], object]) -> None:
        """Make a call soon. The garbage collector may call this method at any time, because it takes no lock."""
        self.post(partial(self.submit, call))

    def end(self) -> None:
        """Accept no more calls, and end the loops that wait. The threads end after the calls that run."""
        self.ended = True
        for loop in list(self.waiting):
            loop.settle(False, _closed())
        self._pool.shutdown(wait=False)
        self._steps.shutdown(wait=False)

    def _run_posted(self) -> None:
        self._scheduled = False  # before the callbacks: what is posted from now on schedules again
        while self._posted:
            self._posted.popleft()()

    def _make(self, call: Callable[[], R], future: asyncio.Future[R]) -> None:
        try:
            result = call()
        except BaseException as error:  # noqa: BLE001 — raised where the call is awaited
            self.post(partial(_settle, future, None, error))
        else:
            self.post(partial(_settle, future, result))


def _closed() -> Refused:
    return Refused("the store is closed", hint="Open it again: `async with connect() as store`")


def _settle(future: asyncio.Future[Any], result: object, error: BaseException | None = None) -> None:
    if future.done():  # cancelled
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


class Twin:
    """Base of the classes of this package. `twin` is the object of `ledger.api` that does the work."""

    def __init__(self, calls: Calls, twin: Any) -> None:
        self.calls = calls
        self.twin = twin

    def __repr__(self) -> str:
        return f"<async {type(self.twin).__name__} {getattr(self.twin, 'name', '')}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.calls.start(self.twin.close)


class awaited(Generic[P, R]):  # noqa: N801 — used as a decorator is
    """Coroutine method that makes a call of the twin. It has the call's name, arguments and docstring.

    class Cursor(Twin):
        acknowledge = awaited(api.Cursor.acknowledge)
    """

    def __init__(self, call: Callable[Concatenate[Any, P], R]) -> None:
        self._call = call

    def __get__(self, handle: Any, owner: type) -> Callable[P, Coroutine[Any, Any, R]]:
        if handle is None:
            return self._call  # type: ignore[return-value]  # for `inspect` and `help`

        async def make(*args: P.args, **kwargs: P.kwargs) -> R:
            call = getattr(handle.twin, self._call.__name__)  # that of the twin's own class
            result: R = await handle.calls.start(partial(call, *args, **kwargs))
            return result

        make.__name__, make.__doc__ = self._call.__name__, self._call.__doc__
        make.__wrapped__ = self._call.__get__(handle)  # type: ignore[attr-defined]  # for `inspect`
        return make


class _Closing(Protocol):
    async def __aenter__(self) -> Any: ...

    async def __aexit__(self, *_: object) -> None: ...


H = TypeVar("H", bound=_Closing)


class Opening(Generic[H]):
    """Handle that is being opened: `await` it, or use `async with`, which also closes it."""

    def __init__(self, opened: Coroutine[Any, Any, H]) -> None:
        self._opened = opened
        self._handle: H | None = None

    def __await__(self) -> Generator[Any, None, H]:
        return self._opened.__await__()

    async def __aenter__(self) -> H:
        self._handle = await self._opened
        return self._handle

    async def __aexit__(self, *error: object) -> None:
        if self._handle is not None:
            await self._handle.__aexit__(*error)
