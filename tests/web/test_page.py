"""Goal: people see a store on the status page, by mouse, keyboard and phone. Method: Chromium, and a broker with data.

With `LEDGER_SCREENSHOTS=docs` the pictures of docs/status-page.md are taken anew.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from pyspark_ledger.ledger.api.store import LedgerStore, connect
from pyspark_ledger.ledger.protocol.actions import CreateLedger
from streaming_examples.flights import flights as flights_table
from tests.rigs.broker import BrokerRig

pytestmark = pytest.mark.web
ODD = "<img src=x onerror=alert(1)>"
LIGHT = {"width": 1180, "height": 1000}
PHONE = {"width": 390, "height": 844}


@pytest.fixture
def url(rig: BrokerRig) -> str:
    rig.start("--create", "--web", "http://127.0.0.1:0")
    return str(re.findall(r"served at (http://\S+)", rig.log())[-1])


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """A page that fails its test by an error of its script or a request to another host."""
    with closing(browser.new_page(viewport=LIGHT, color_scheme="light")) as opened:
        problems = list[str]()
        opened.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.on(
            "request", lambda request: problems.append(request.url) if "//127.0.0.1:" not in request.url else None
        )
        yield opened
        assert problems == []


def filled(rig: BrokerRig, bucket: Path) -> LedgerStore:
    """A store with a ledger in a bucket, on disk and open, cursors with a backlog and with holes, and many ledgers."""
    store = connect(rig.store)
    store.offload_to(bucket)
    flights = flights_table()
    ledger = store.create("flights")
    for part in range(8):
        ledger.append(flights.slice(part * 4000, 4000))
        ledger.seal()
        if part == 4:
            ledger.offload()
    ledger.append(flights.slice(0, 2000))
    behind = ledger.cursor("billing")
    _, position = behind.read()
    behind.acknowledge(position)
    ledger.append(flights.slice(0, 6000))
    holes = ledger.cursor("workers")
    end = ledger.end().end
    holes.acknowledge_rows([(end.ledger_id, end.entry_id - 1)])
    ledger.cursor("audit")
    for number in range(120):
        rig.client().ask(CreateLedger(f"sensor-{number:03}"))
    return store


def test_a_person_reads_a_store(page: Page, rig: BrokerRig, url: str, tmp_path: Path) -> None:
    filled(rig, tmp_path / "bucket")
    page.goto(url)
    flights = page.locator("#rows > li", has_text="flights")
    expect(flights).to_be_visible()
    expect(page.locator("#live")).to_have_text("live")
    expect(page.locator("#count")).to_have_text("(121)")
    strip = flights.locator(".strip")
    expect(strip).to_have_attribute(
        "aria-label", re.compile(r"^5 segments in the bucket and on disk, 3 segments on disk, 1")
    )
    expect(flights.locator(".cursors li")).to_have_count(3)
    expect(flights.locator(".cursors li", has_text="billing")).to_contain_text(
        "about 4,000 rows behind"
    )  # half of the open segment
    expect(flights.locator(".cursors li", has_text="workers")).to_contain_text("1 ranges acknowledged out of order")
    expect(flights.locator("i.mark")).to_have_count(1)
    expect(page.locator("#errors")).to_have_text("none")
    expect(page.locator("#work")).to_contain_text("5 segments")
    take(page, "status-page")


def test_the_page_is_live(page: Page, rig: BrokerRig, url: str, tmp_path: Path) -> None:
    store = connect(rig.store)
    ledger = store.create("orders")
    ledger.append([{"id": 1}])
    page.goto(url)
    row = page.locator("#rows > li", has_text="orders")
    expect(row).to_contain_text("1 rows")
    ledger.append([{"id": number} for number in range(700)])
    expect(row).to_contain_text("701 rows", timeout=30_000)
    expect(row).to_contain_text("rows/s", timeout=30_000)
    for child in rig.pids:
        os.kill(child, 9)
    expect(page.locator("#live")).to_have_attribute("data-state", "lost", timeout=30_000)
    page.unroute_all()


def test_the_keyboard_is_enough(page: Page, rig: BrokerRig, url: str, tmp_path: Path) -> None:
    filled(rig, tmp_path / "bucket")
    page.goto(url)
    expect(page.locator("#page")).to_have_text("page 1 of 3")
    page.keyboard.press("n")
    expect(page.locator("#page")).to_have_text("page 2 of 3")
    page.keyboard.press("p")
    expect(page.locator("#page")).to_have_text("page 1 of 3")
    page.keyboard.press("/")
    page.keyboard.type("SENSOR-11")
    expect(page.locator("#count")).to_have_text("(10)")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.press("j")
    expect(page.locator("#rows > li").nth(1)).to_be_focused()
    page.keyboard.press("/")
    page.keyboard.press("Control+a")
    page.keyboard.type("nothing like that")
    expect(page.locator("#empty")).to_be_visible()


def test_the_largest_backlog_comes_first_if_asked(page: Page, rig: BrokerRig, url: str, tmp_path: Path) -> None:
    filled(rig, tmp_path / "bucket")
    page.goto(url)
    expect(page.locator("#rows > li h3").first).to_have_text("flights")
    page.select_option("#sort", "name")
    late = connect(rig.store).create("zebra")
    late.append([{"id": number} for number in range(100_000)])
    late.cursor("slow")
    page.select_option("#sort", "backlog")
    expect(page.locator("#rows > li h3").first).to_have_text("zebra", timeout=30_000)


def test_a_phone_in_the_dark_needs_no_sideways_scrolling(
    browser: Browser, rig: BrokerRig, url: str, tmp_path: Path
) -> None:
    filled(rig, tmp_path / "bucket")
    with closing(browser.new_page(viewport=PHONE, color_scheme="dark")) as page:
        page.goto(url)
        expect(page.locator("#rows > li").first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
        dark: Any = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert dark == "rgb(20, 25, 26)"
        take(page, "status-page-phone")


def test_a_name_is_never_markup(page: Page, rig: BrokerRig, url: str) -> None:
    store = connect(rig.store)
    store.create("orders").append([{"id": 1}])
    store.ledger("orders").cursor(ODD)
    page.goto(url)
    expect(page.locator(".cursors li")).to_contain_text(ODD)
    expect(page.locator("img")).to_have_count(0)


def take(page: Page, name: str) -> None:
    """Take the picture of a documentation page, if asked."""
    folder = os.environ.get("LEDGER_SCREENSHOTS")
    if folder:
        page.wait_for_timeout(11_000)  # two samples, so that rates are shown
        page.screenshot(path=Path(folder) / f"{name}.png")
