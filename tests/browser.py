"""A real browser for the tests of pages: headless Chromium, driven by Playwright, and watched.

A test module takes the fixture by importing it (``from .browser import browser``) and opens pages
with ``watch(browser)``: the page may load files and data, everything else is refused and noted, and
so is every error in the console.

Playwright keeps an event loop running in its thread while the browser is open, so the browser is
closed with its module, and ``asyncio.run`` (nbclient's too) belongs in another process meanwhile.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
OWN = ("file:", "data:", "blob:", "about:")  # what a page that needs no network may ask for
FAR = 120_000  # milliseconds; only ends a hang: a machine may be busy, and nothing is measured
expect.set_options(timeout=FAR)


class Quiet(SimpleHTTPRequestHandler):
    """A server that says nothing of each request."""

    def log_message(self, *args: Any) -> None:
        """Nothing."""


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder is served, on this machine alone."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


def find_chromium() -> str:
    """Where Chromium is: ``$MINISCHED_CHROMIUM``, or the first of its names on the path.

    Raises:
        RuntimeError: it is not on this machine.
    """
    names = (os.environ.get("MINISCHED_CHROMIUM", ""), *NAMES)
    found = next((path for path in map(shutil.which, filter(None, names)) if path), None)
    if found is None:
        raise RuntimeError(
            "the tests of pages need Chromium: install it (apt-get install chromium), "
            "or set MINISCHED_CHROMIUM to where it is."
        )
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Chromium, for one module of tests; fails with one sentence where there is none."""
    try:
        path = find_chromium()
    except RuntimeError as error:
        pytest.fail(str(error), pytrace=False)
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, args=ARGUMENTS, timeout=FAR)
        yield chromium
        chromium.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a module of tests puts its pages."""
    return tmp_path_factory.mktemp("pages")


@dataclass
class Watched:
    """A page, and what it did that it should not have."""

    page: Page
    errors: list[str] = field(default_factory=list)  # in the console, or thrown and not caught
    left: list[str] = field(default_factory=list)  # addresses outside of what was allowed

    def assert_clean(self) -> None:
        """No error, and no request that left the page."""
        assert self.errors == []
        assert self.left == []


@contextmanager
def watch(browser: Browser, allowed: tuple[str, ...] = OWN, **options: Any) -> Iterator[Watched]:
    """A fresh page that may ask for addresses with these beginnings only, and is clean at the end.

    ``options`` are Playwright's for a context: ``viewport``, ``color_scheme``, ``reduced_motion``.
    """
    context = browser.new_context(**options)
    context.set_default_timeout(FAR)
    watched = Watched(context.new_page())

    def decide(route: Route) -> None:
        if route.request.url.startswith(allowed):
            route.continue_()
        else:
            watched.left.append(route.request.url)
            route.abort()

    def hear(kind: str, text: str) -> None:
        if kind == "error":
            watched.errors.append(text)

    context.route("**/*", decide)
    watched.page.on("console", lambda message: hear(message.type, message.text))
    watched.page.on("pageerror", lambda error: hear("error", str(error)))
    try:
        yield watched
        watched.assert_clean()
    finally:
        context.close()
