"""Followers in one event loop against followers with a thread each: CPU of the process, and the blocks of the loop.

1,000 followers wait for 100 ledgers, ten for each. Another process appends one row to each ledger in turn. Each side
runs in a process of its own, at the same time of a round on neither: the rounds alternate. A side ends when each
follower has received all rows of its ledger. The result is the ratio of the CPU times of that phase.

The event loop also measures itself: a task sleeps for one millisecond again and again. Its delay is the block of the
loop. The base of this delay is an event loop without followers in a process beside the same load.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.harness import compare
from benchmarks.raw_disk import bench_dir
from pyspark_ledger import aio
from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.protocol.actions import StopBroker

FOLLOWERS = int(os.environ.get("AIO_FOLLOWERS", "1000"))
LEDGERS = FOLLOWERS // 10
APPENDS = int(os.environ.get("AIO_APPENDS", "20"))  # to each ledger
PAUSE_SECONDS = 0.002  # between two appends
THREADS_MAX = 16


def names() -> list[str]:
    """Return the names of the ledgers."""
    return [f"orders-{number}" for number in range(LEDGERS)]


async def follow_async(path: str) -> dict[str, float]:
    """Follow all ledgers in this event loop. Return the CPU seconds, the number of threads and the blocks."""
    done = asyncio.Event()
    blocks = asyncio.ensure_future(measure(done))
    async with aio.connect(path) as store:
        ledgers = [await store.ledger(name) for name in names()]
        loops = [ledgers[number % LEDGERS].follow() for number in range(FOLLOWERS)]
        for batches in loops:
            await anext(batches)
        ready()
        begun, most = time.process_time(), 0

        async def worker(batches: aio.Batches[aio.Batch]) -> None:
            left = APPENDS
            while left:
                left -= (await anext(batches)).num_rows

        workers = [asyncio.ensure_future(worker(batches)) for batches in loops]
        while not all(each.done() for each in workers):
            most = max(most, threading.active_count())
            await asyncio.sleep(0.1)
        seconds = time.process_time() - begun
        done.set()
        delays = sorted(await blocks)
        for batches in loops:
            await batches.close()
    return {"cpu": seconds, "threads": most, "p999_ms": delays[int(len(delays) * 0.999)]}


def follow_threads(path: str) -> dict[str, float]:
    """Follow all ledgers with a thread each. Return the CPU seconds, and the number of threads."""
    threading.stack_size(256 * 1024)
    with connect(path) as store:
        ledgers = [store.ledger(name) for name in names()]
        loops = [ledgers[number % LEDGERS].follow() for number in range(FOLLOWERS)]
        for batches in loops:
            next(batches)
        ready()
        begun = time.process_time()

        def worker(number: int) -> None:
            left = APPENDS
            while left:
                left -= next(loops[number]).num_rows

        threads = [threading.Thread(target=worker, args=(number,)) for number in range(FOLLOWERS)]
        for thread in threads:
            thread.start()
        most = threading.active_count()
        asyncio.run(joined(threads))
        return {"cpu": time.process_time() - begun, "threads": most, "p999_ms": 0}


async def joined(threads: list[threading.Thread]) -> None:
    """Wait for threads, beside the measuring task that the other side also has: its CPU counts on both sides."""
    done = asyncio.Event()
    blocks = asyncio.ensure_future(measure(done))
    for thread in threads:
        await asyncio.to_thread(thread.join)
    done.set()
    await blocks


async def measure(done: asyncio.Event) -> list[float]:
    """Return the milliseconds by which each sleep of one millisecond was too long."""
    delays = []
    while not done.is_set():
        begun = time.perf_counter()
        await asyncio.sleep(0.001)
        delays.append((time.perf_counter() - begun) * 1000 - 1)
    return delays


async def idle() -> dict[str, float]:
    """Measure an event loop without followers until the standard input ends."""
    done = asyncio.Event()
    ready()
    blocks = asyncio.ensure_future(measure(done))
    await asyncio.to_thread(sys.stdin.read)
    done.set()
    delays = sorted(await blocks)
    return {"p999_ms": delays[int(len(delays) * 0.999)]}


def ready() -> None:
    """Tell the benchmark that the followers wait."""
    print("ready", flush=True)


@contextmanager
def side(kind: str, path: str) -> Iterator[subprocess.Popen[str]]:
    """Yield a process that is ready."""
    command = [sys.executable, "-m", "benchmarks.aio_followers", kind, path]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None  # noqa: S101 — a pipe
    if process.stdout.readline() != "ready\n":
        message = f"the side {kind} did not begin"
        raise RuntimeError(message)
    yield process


def result(process: subprocess.Popen[str]) -> dict[str, float]:
    """Return what a side has measured."""
    found: dict[str, float] = json.loads(process.communicate(timeout=600)[0])
    return found


class Followers:
    """Store whose ledgers are followed, and the measurements."""

    def __init__(self, store: LedgerStore) -> None:
        self.store = store
        self.blocks: list[tuple[float, float]] = []
        self.threads = 0.0

    def run(self, kind: str) -> float:
        """Append to all ledgers while one side follows them. Return the CPU seconds of the side."""
        ledgers = [self.store.ledger(name) for name in names()]
        for ledger in ledgers:
            if ledger.name in self.store.names():
                self.store.delete(ledger.name)
            ledger.append([{"n": 0}])
        with side(kind, self.store.location) as process, side("idle", self.store.location) as beside:
            for _ in range(APPENDS):
                for ledger in ledgers:
                    ledger.append([{"n": 1}])
                    time.sleep(PAUSE_SECONDS)
            found, unused = result(process), result(beside)
        if kind == "async":
            self.blocks.append((found["p999_ms"], unused["p999_ms"]))
            self.threads = max(self.threads, found["threads"])
        print(f"  {kind}: {found}, idle loop beside it: {unused}")
        return found["cpu"]


def main() -> None:
    """Print the blocks, the threads and the ratio of CPU times."""
    if len(sys.argv) > 1:
        kind, path = sys.argv[1:]
        sides = {"async": lambda: asyncio.run(follow_async(path)), "threads": lambda: follow_threads(path)}
        print(json.dumps(asyncio.run(idle()) if kind == "idle" else sides[kind]()))
        return
    with tempfile.TemporaryDirectory(dir=bench_dir(), ignore_cleanup_errors=True) as scratch:
        store = connect(Path(scratch) / "store")
        followers = Followers(store)
        compared = compare(
            "aio_followers", lambda: followers.run("async"), lambda: followers.run("threads"), of_time=True
        )
        ours, idle_ms = (sorted(column)[len(column) // 2] for column in zip(*followers.blocks, strict=True))
        print(f"p99.9 block: {ours:.1f} ms, of an idle loop beside it {idle_ms:.1f} ms (medians)")
        print(f"threads: at most {followers.threads:.0f} of {THREADS_MAX}")
        print(f"ratio {compared.name} {compared.ratio:.2f}")
        store.client.ask(StopBroker())


if __name__ == "__main__":
    main()
