"""What the report's tests share: made-up runs, and a real browser for those marked `browser`."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from conformance.report import html
from conformance.spec.records import Results
from tests.report import synthetic

if TYPE_CHECKING:
    from playwright.sync_api import Browser

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


#: How many tests want a browser that is not there.
LEFT_OUT = pytest.StashKey[int]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without a browser its tests are left out, unless they were asked for: then they fail."""
    if "browser" in (config.getoption("-m") or "") or _chromium():
        return
    wanting = [item for item in items if item.get_closest_marker("browser")]
    if wanting:
        config.hook.pytest_deselected(items=wanting)
        config.stash[LEFT_OUT] = len(wanting)
        items[:] = [item for item in items if item not in wanting]


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Left out in silence would look as if the page had been looked at."""
    if count := config.stash.get(LEFT_OUT, 0):
        terminalreporter.write_line(
            f"{count} tests of the page were left out, for there is no browser: install chromium, "
            "or name one in CONFORMANCE_BROWSER",
            yellow=True,
        )


def _chromium() -> str | None:
    return os.environ.get("CONFORMANCE_BROWSER") or shutil.which("chromium")


@pytest.fixture(scope="session")
def results() -> Results:
    return synthetic.results()


@pytest.fixture(scope="session")
def published(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of these results, next to those of their architectures; no test may change it."""
    return html.publish(results, tmp_path_factory.mktemp("published"))


@pytest.fixture(scope="session")
def chromium() -> str:
    """The browser's path. Asked for and not there is a failure: a skip would look green."""
    found = _chromium()
    if not found or not Path(found).exists():
        pytest.fail("no browser: install chromium, or name one in CONFORMANCE_BROWSER")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """A browser for a module's tests: while it is open, playwright's event loop runs in this
    thread, and no test after it could call `asyncio.run`.
    """
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        launched = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        yield launched
        launched.close()
