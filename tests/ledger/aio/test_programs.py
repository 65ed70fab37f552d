"""Goal: asyncio programs work where their users run them. Method: the service of docs/async.md, and a kernel."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn

from pyspark_ledger.ledger.api.store import LedgerStore
from tests.rigs.kernel import printed, run_cells

PAGE = Path(__file__).resolve().parents[3] / "docs" / "async.md"
CODE_LINES_MAX = 12
SECONDS = 60


@pytest.fixture(scope="module")
def code() -> str:
    """Return the page's program."""
    (found,) = re.findall(r"^```python\n([^`]*FastAPI[^`]*)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    return str(found)


@asynccontextmanager
async def served(code: str) -> AsyncIterator[tuple[httpx.AsyncClient, dict[str, Any]]]:
    """Serve the page's program in this event loop. Yield a client, and the names of the program."""
    names: dict[str, Any] = {}
    exec(compile(code, PAGE.name, "exec"), names)  # noqa: S102 — the page of this checkout
    server = uvicorn.Server(
        uvicorn.Config(names["service"], port=0, timeout_graceful_shutdown=1, log_level="warning", lifespan="on")
    )
    serving = asyncio.ensure_future(server.serve())
    while not server.started and not serving.done():  # noqa: ASYNC110 — uvicorn has no event
        await asyncio.sleep(0.01)
    ((address, port),) = [listener.getsockname() for each in server.servers for listener in each.sockets]
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}:{port}", timeout=SECONDS) as client:
            yield client, names
            server.should_exit = True
            await serving
    finally:
        serving.cancel()


def run(code: str, work: Callable[[httpx.AsyncClient, dict[str, Any]], Any]) -> None:
    async def main() -> None:
        async with asyncio.timeout(SECONDS), served(code) as (client, names):
            await work(client, names)

    asyncio.run(main())


def test_service_of_the_page_has_twelve_lines_and_its_imports(code: str) -> None:
    lines = [line for line in code.splitlines() if line and not re.match(r"(from|import) ", line)]
    assert len(lines) <= CODE_LINES_MAX


def test_service_streams_rows_and_closes_its_store_at_the_end(
    code: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEDGER_STORE", store.location)
    opened: list[Any] = []

    async def work(client: httpx.AsyncClient, names: dict[str, Any]) -> None:
        opened.append(names["service"].state.visits)
        for n in range(2):
            (await client.post("/visits", json={"n": n})).raise_for_status()
        assert (await client.post("/visits", content=b"no json")).is_client_error
        async with client.stream("GET", "/visits") as answer:
            rows: list[int] = []
            async for line in answer.aiter_lines():
                rows += [row["n"] for row in json.loads(line)]
                if len(rows) == 4:
                    break
                if len(rows) > 1:
                    (await client.post("/visits", json={"n": len(rows)})).raise_for_status()
        assert rows == [0, 1, 2, 3]

    run(code, work)
    assert store.ledger("visits").read().column("n").to_pylist() == [0, 1, 2, 3]
    assert opened[0].calls._pool._shutdown


def test_service_stops_while_a_client_follows(code: str, store: LedgerStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEDGER_STORE", store.location)
    opened: list[Any] = []

    async def work(client: httpx.AsyncClient, names: dict[str, Any]) -> None:
        opened.append(names["service"].state.visits)
        await client.post("/visits", json={"n": 0})
        request = client.build_request("GET", "/visits")
        answer = await client.send(request, stream=True)
        lines = answer.aiter_lines()
        assert json.loads(await anext(lines)) == [{"n": 0}]
        opened.append(lines)  # the client stays

    run(code, work)
    assert opened[0].calls._pool._shutdown


@pytest.mark.thorough
@pytest.mark.timeout(180)
def test_cells_of_a_notebook_share_a_store_and_its_loop(store: LedgerStore, tmp_path: Path) -> None:
    *_, looped, waited, closed = run_cells(
        tmp_path,
        f"from pyspark_ledger.aio import connect\nstore = await connect({store.location!r})",
        "orders = await store.ledger('orders')\nawait orders.append([{'n': n} for n in range(3)])\n"
        "batches = orders.follow()",
        "print([row['n'] for row in (await anext(batches)).rows()])",
        "import asyncio\nnext_batch = asyncio.ensure_future(anext(batches))\nawait orders.append([{'n': 3}])\n"
        "print([row['n'] for row in (await next_batch).rows()])",
        "await batches.close()\nawait store.close()\nprint('closed')",
    )
    assert [printed(cell) for cell in (looped, waited, closed)] == ["[0, 1, 2]\n", "[3]\n", "closed\n"]
