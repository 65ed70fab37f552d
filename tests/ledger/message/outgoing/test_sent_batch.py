"""Goal: a message's future is one of `concurrent.futures`, before and after its result. Method: every way to wait."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from concurrent.futures import FIRST_EXCEPTION, Future, as_completed, wait

import pytest

from pyspark_ledger.ledger.errors import Unavailable
from pyspark_ledger.ledger.message.outgoing.sent_batch import MessageFuture, SentBatch
from pyspark_ledger.ledger.position import MessageId, Position

ENTRY = Position(3, 7)
IDS = [MessageId(3, 7, number, 1) for number in range(3)]


def sent() -> tuple[SentBatch, list[MessageFuture]]:
    batch = SentBatch(1)
    return batch, [MessageFuture(batch, number) for number in range(3)]


def test_a_future_in_flight_waits_and_cannot_be_cancelled() -> None:
    batch, futures = sent()
    with pytest.raises(TimeoutError):
        futures[0].result(0.01)
    with pytest.raises(TimeoutError):
        futures[0].exception(0)
    assert (futures[0].done(), futures[0].running(), futures[0].cancel(), futures[0].cancelled()) == (
        False, True, False, False,
    )  # fmt: skip
    threading.Timer(0.05, lambda: batch.succeed(ENTRY, is_batch=True)).start()
    assert [future.result(10) for future in futures] == IDS
    assert all(future.done() and not future.running() and future.exception() is None for future in futures)


def test_a_single_message_has_no_batch_index() -> None:
    batch, (future, *_) = sent()
    batch.succeed(ENTRY, is_batch=False)
    assert future.result() == MessageId(3, 7, -1, 1)


def test_an_error_is_that_of_every_message() -> None:
    batch, futures = sent()
    seen: list[Future[MessageId]] = []
    futures[1].add_done_callback(seen.append)
    batch.fail(Unavailable("gone"))
    assert seen == [futures[1]]
    for future in futures:
        assert isinstance(future.exception(), Unavailable)
        with pytest.raises(Unavailable, match="gone"):
            future.result()
    assert wait(futures, timeout=10, return_when=FIRST_EXCEPTION).not_done == set()


@pytest.mark.parametrize("first", [True, False])
def test_the_functions_of_the_standard_library_take_the_futures(first: bool) -> None:
    batch, futures = sent()
    called: list[MessageId] = []

    def settle() -> None:
        batch.succeed(ENTRY, is_batch=True)

    if first:
        settle()
    else:
        threading.Timer(0.05, settle).start()
    futures[0].add_done_callback(lambda future: called.append(future.result()))
    assert wait(futures, timeout=10).not_done == set()
    assert {future.result() for future in as_completed(futures, timeout=10)} == set(IDS)
    assert called == IDS[:1]

    async def gathered() -> list[MessageId]:
        return await asyncio.gather(*map(asyncio.wrap_future, futures))

    assert asyncio.run(gathered()) == IDS
    assert "finished" in repr(futures[0])


@pytest.mark.parametrize("_", range(50))
def test_many_threads_add_callbacks_while_the_result_comes(_: int) -> None:
    batch = SentBatch(1)
    futures = [MessageFuture(batch, number) for number in range(40)] * 2
    seen: list[int] = []

    def add(future: MessageFuture) -> None:
        future.add_done_callback(lambda done: seen.append(done.result().batch_index))

    threads = [threading.Thread(target=add, args=(future,)) for future in futures]
    for number, thread in enumerate(threads):
        thread.start()
        if number == 40:
            batch.succeed(ENTRY, is_batch=True)
    for thread in threads:
        thread.join()
    assert sorted(seen) == sorted([*range(40), *range(40)])


def test_futures_are_untracked_and_a_failed_batch_is_released() -> None:
    def use() -> weakref.ref[SentBatch]:
        batch, futures = sent()
        futures[0].add_done_callback(lambda _: futures[1].done())
        batch.fail(Unavailable("gone"))
        errors = []  # their tracebacks lead to this frame, and so to the futures
        for future in (*futures, *as_completed(futures)):
            for call in (future.result, future.exception):
                try:
                    errors.append(call())
                    raise errors[-1]  # type: ignore[misc]  # an error
                except Unavailable as error:
                    errors.append(error)
        assert len(errors) == 18
        assert not any(map(gc.is_tracked, futures))
        return weakref.ref(batch)

    released = use()
    gc.collect()  # the frame, and with it the futures
    gc.collect()  # the batch
    assert released() is None


def test_an_unknown_attribute_is_missing() -> None:
    with pytest.raises(AttributeError, match="answer"):
        sent()[1][0].answer  # noqa: B018
