"""Brokers as processes (`tests.rigs.broker`), and Chromium."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, sync_playwright

from tests.rigs.broker import make_entry, rig, run_directory, session_run_directory
from tests.web.programs import program

__all__ = ["make_entry", "rig", "run_directory", "session_run_directory"]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    chromium = program("chromium")  # sets the path of libraries, which playwright's own process inherits
    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield launched
        launched.close()
