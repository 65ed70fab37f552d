"""Goal: the documentation site works in a browser, wide and on a phone. Method: Chromium, and the site as built."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.docs.test_site import build

pytestmark = pytest.mark.web
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 390, "height": 844}


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    site = tmp_path_factory.mktemp("site")
    assert build(site).returncode == 0

    class Files(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(site))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Files) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def page(browser: Browser, address: str) -> Iterator[Page]:
    """A page that fails its test by an error of its script or a request to another host."""
    with closing(browser.new_page(viewport=WIDE)) as opened:
        problems = list[str]()
        opened.on("pageerror", lambda error: problems.append(str(error)))
        opened.on("request", lambda request: None if request.url.startswith(address) else problems.append(request.url))
        yield opened
        assert problems == []


def test_the_search_finds_an_option(page: Page, address: str) -> None:
    page.goto(f"{address}/index.html")
    page.keyboard.press("/")
    page.keyboard.type("maxRowsPerTrigger")
    expect(page.locator(".md-search-result__list a").first).to_be_visible()


def test_the_tabs_of_the_quickstart_change_the_code(page: Page, address: str) -> None:
    page.goto(f"{address}/quickstart.html")
    shown = page.locator(".tabbed-block:visible")
    expect(shown).to_contain_text("createDataFrame")
    page.get_by_text("No Spark", exact=True).click()
    expect(shown).to_contain_text("connect()")


@pytest.mark.parametrize("name", ["index", "quickstart", "options", "api", "cli", "comparison", "errors", "formats"])
def test_a_phone_needs_no_sideways_scrolling(page: Page, address: str, name: str) -> None:
    """Tables and code scroll within themselves."""
    page.set_viewport_size(PHONE)
    page.goto(f"{address}/{name}.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
