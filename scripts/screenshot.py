"""Takes the README's picture, docs/matrix.png, of the newest run's page.

    .venv/bin/python scripts/screenshot.py [reports/RUN/index.html] [docs/matrix.png]

Needs Chromium (Debian: `apt-get install chromium`), found on the path or named in
CONFORMANCE_BROWSER, and playwright of the `dev` extra.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
WIDTH, SCALE = 1560, 1.25
TALLEST = 2600
FLAGS = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking")


def picture(page_path: Path, picture_path: Path, chromium: str) -> None:
    """The overview down to the end of the matrix, in the light theme."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        page = browser.new_page(
            viewport={"width": WIDTH, "height": TALLEST},
            device_scale_factor=SCALE,
            color_scheme="light",
        )
        page.goto(f"file://{page_path.resolve()}")
        page.wait_for_selector("html[data-ready]")
        legend = page.locator(".legend").bounding_box()
        end = TALLEST if legend is None else legend["y"] + legend["height"] + 24
        height = min(end, TALLEST)
        page.screenshot(path=picture_path, clip={"x": 0, "y": 0, "width": WIDTH, "height": height})
        browser.close()


def main() -> None:
    asked = [Path(argument) for argument in sys.argv[1:]]
    page = asked[0] if asked else ROOT / "reports" / "latest" / "index.html"
    target = asked[1] if len(asked) > 1 else ROOT / "docs" / "matrix.png"
    chromium = os.environ.get("CONFORMANCE_BROWSER") or shutil.which("chromium")
    if not page.exists():
        sys.exit(f"{page}: there is no such page; make one with `conformance run`")
    if not chromium:
        sys.exit("no chromium on the path; name one in CONFORMANCE_BROWSER")
    picture(page, target, chromium)
    print(target)


if __name__ == "__main__":
    main()
