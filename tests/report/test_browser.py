"""The page in a real browser, opened from disk: `pytest -m browser`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance.report import html
from conformance.spec.records import Results
from tests.report import hostile, synthetic

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, LocatorAssertions, Page

pytestmark = pytest.mark.browser

DROPPED = "steering[llama-vllm-pp2-middle-large-all]"
#: Milliseconds on a machine of two cores.
FIRST_PAINT, FILTERING, MANY = 1000, 100, 3000


@dataclass
class Tab:
    """An open page, and everything it complained of or asked for."""

    page: Page
    path: Path
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def open(self, fragment: str = "") -> Page:
        self.page.goto(f"file://{self.path}{fragment}")
        self.page.wait_for_selector("html[data-ready]")
        return self.page


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory, published: Path) -> Callable[[str], Path]:
    """Pages by name, each written once."""
    made = {"default": published}
    runs: dict[str, Callable[[], Results]] = {
        "hostile": hostile.hostile,
        "empty": lambda: synthetic.wrapped(()),
        "one": synthetic.one_cell,
        "many": synthetic.many,
        "broad": lambda: synthetic.many(models=4),
        "wide": lambda: synthetic.results(
            synthetic.Maker(scenarios={f"scenario_{i:02}": ("all",) for i in range(23)})
        ),
    }

    def get(name: str) -> Path:
        if name not in made:
            made[name] = html.write(runs[name](), tmp_path_factory.mktemp(name))
        return made[name]

    return get


@pytest.fixture
def tab(browser: Browser, pages: Callable[[str], Path]) -> Iterator[Callable[..., Tab]]:
    """Opens tabs; at the end none may have complained or asked the network for anything."""
    opened: list[Tab] = []

    def make(name: str = "default", **options: Any) -> Tab:
        page = browser.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        one = Tab(page, pages(name))
        page.on("console", lambda m: one.complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda e: one.complaints.append(str(e)))
        page.on("request", lambda request: one.requests.append(request.url))
        opened.append(one)
        return one

    yield make
    for one in opened:
        one.page.close()
        assert one.complaints == []
        assert [url for url in one.requests if not url.startswith(("file:", "data:"))] == []


def expect(locator: Locator) -> LocatorAssertions:
    from playwright.sync_api import expect

    return expect(locator)


def settle(page: Page) -> None:
    """Two frames: what was asked for has been laid out."""
    page.evaluate(
        "() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )


def visit(page: Page, fragment: str) -> None:
    """Follow a link within the page, until what it leads to has been laid out."""
    page.evaluate("where => { location.hash = where }", fragment)
    settle(page)
    page.wait_for_selector("main > section:not([hidden]) h3")
    settle(page)


def ids(page: Page) -> list[str]:
    return page.locator("#cells .id").all_inner_texts()


def test_the_overview_answers_for_every_model_and_backend(tab: Any, results: Results) -> None:
    page = tab().open()
    assert page.locator("#matrix .row:not(.head)").count() == len(results.models)
    assert page.locator("#matrix .tile").count() == len(results.groups) * len(results.scenarios)
    row = page.locator("#matrix .row", has_text="the write at layer 2 had no effect")
    assert "llama" in row.inner_text()
    assert "8 of 23 dropped" in row.inner_text()
    assert "52 unexpected in 10 models. " in page.locator("h2.headline").inner_text()


def test_filters_narrow_the_matrix_and_the_list_and_live_in_the_address(tab: Any) -> None:
    page = tab().open()
    page.click("#filter-verdict [data-value=dropped]")
    assert page.locator("#found").inner_text() == "8 of 897 cells"
    assert page.locator("#matrix .row:not(.head):visible").count() == 1
    assert all("llama" in name for name in ids(page))
    page.click("#filter-verdict [data-value=crash]")
    page.click("summary:has-text('scenario and backend')")
    page.click("#filter-scenario [data-value=multigen]")
    assert page.locator("#found").inner_text() == "3 of 897 cells"
    page.click("#filter-backend [data-value=vllm-pp2]")
    page.fill("#search", "bloom cross")
    expect(page.locator("#found")).to_have_text("1 of 897 cells")
    assert ids(page) == ["multigen[bloom-vllm-pp2-cross]"]
    assert "verdict=dropped,crash" in page.url
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert ids(page) == ["multigen[bloom-vllm-pp2-cross]"]
    assert page.locator("#search").input_value() == "bloom cross"
    page.click("#clear")
    assert page.locator("#found").inner_text() == "897 cells"
    page.click("#filter-backend [data-value=hf]")
    assert page.locator("#found").inner_text() == "299 of 897 cells"
    assert page.locator("#matrix .row.head .block:visible").count() == 1


def test_what_fits_nothing_says_so(tab: Any) -> None:
    page = tab().open("#q=nothing-is-called-this")
    assert page.locator("#nothing").is_visible()
    assert page.locator("#matrix .row:not(.head):visible").count() == 0
    page.evaluate("location.hash = '#cell=never[was-here]'")
    expect(page.locator("#lost")).to_contain_text("There is no cell never[was-here]")
    assert page.locator("#matrix").is_visible()


def test_every_cell_has_a_link_that_survives_a_reload(tab: Any) -> None:
    page = tab().open(f"#cell={DROPPED}")
    for _ in range(2):
        assert page.locator("#cell h2").inner_text() == DROPPED
        page.wait_for_selector("#cell .verdict")
        assert "dropped: the write had no effect." in page.locator("#cell .verdict").inner_text()
        page.reload()
        page.wait_for_selector("html[data-ready]")
    assert page.title().startswith(DROPPED)


def test_a_cell_shows_its_evidence(tab: Any) -> None:
    page = tab().open(f"#cell={DROPPED}")
    page.wait_for_selector("#cell svg")
    labels = page.locator("#cell svg[role=img]").evaluate_all(
        "all => all.map(one => one.getAttribute('aria-label'))"
    )
    assert any("the first is 2" in label for label in labels)
    assert any("Gain of the write" in label for label in labels)
    assert any("token" in label and "beyond the limit" in label for label in labels)
    assert page.locator("#cell svg .bound").count() >= 2
    # Layers 2 and 3 of the plot shown, and their gains in both prompts.
    assert page.locator("#cell svg path.off").count() == 2 + 4
    text = page.locator("#cell").inner_text()
    for wanted in ("match on hf", "prompt token ids equal on all sides", "vllm-cpu"):
        assert wanted in text
    page.click("summary:has-text('the trace')")
    assert "with lm.trace" in page.locator("#cell .sources pre").first.inner_text()
    # The choice of a run and a prompt draws the plot again.
    plot = page.locator("#cell .figures svg.plot").first
    before = plot.get_attribute("aria-label")
    options = page.locator("#cell select option").all_inner_texts()
    page.select_option("#cell select", str(next(i for i, o in enumerate(options) if "clean" in o)))
    assert plot.get_attribute("aria-label") != before


def test_keys_walk_the_matrix_and_the_problems(tab: Any) -> None:
    page = tab().open()
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "search"
    page.keyboard.press("Escape")
    # Hundreds of tiles are one stop of Tab: arrow keys walk inside.
    stop = page.locator(".tile[tabindex='0']")
    stop.focus()
    for key in ("ArrowRight", "ArrowDown", "End", "ArrowDown", "ArrowLeft"):
        page.keyboard.press(key)
        assert page.evaluate("document.activeElement.classList.contains('tile')")
        assert stop.count() == 1
    assert "qwen2" in page.locator("#reading").inner_text()
    page.keyboard.press("Enter")
    page.wait_for_selector("#cell .verdict")
    assert "qwen2-vllm-pp2" in page.locator("#cell h2").inner_text()
    assert page.evaluate("document.activeElement.tagName") == "H2"
    here = page.locator("#cell h2").inner_text()
    page.keyboard.press("n")
    expect(page.locator("#cell h2")).not_to_have_text(here)
    page.keyboard.press("Escape")
    page.wait_for_selector("#model h2")
    page.keyboard.press("Escape")
    page.wait_for_selector("#matrix:visible")
    page.keyboard.press("?")
    assert page.locator("#help").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#help").is_hidden()
    page.click("#filter-verdict [data-value=dropped]")
    assert page.locator(".tile[tabindex='0']:visible").count() == 1


def test_going_back_from_a_cell_keeps_the_filter_and_the_place(tab: Any) -> None:
    page = tab().open("#verdict=match")
    page.evaluate("scrollTo(0, 600)")
    page.locator("#matrix .tile:visible").nth(60).click()
    page.wait_for_selector("#cell .verdict")
    left = page.evaluate("scrollY")
    page.click("#cell .crumbs a:has-text('matrix')")
    page.wait_for_selector("#matrix:visible")
    assert "816 of 897" in page.locator("#found").inner_text()
    assert left == 0
    assert page.evaluate("scrollY") > 300
    assert page.evaluate("document.activeElement.classList.contains('tile')")


def test_dark_and_light_follow_the_system_and_the_button(tab: Any) -> None:
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    page = tab(color_scheme="dark").open()
    assert luminance(page.evaluate(ground)) < 0.1
    page.click("#theme")
    assert luminance(page.evaluate(ground)) > 0.9
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert luminance(page.evaluate(ground)) > 0.9
    assert luminance(tab(color_scheme="light").open().evaluate(ground)) > 0.9


def luminance(colour: str) -> float:
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / (3 * 255)


@pytest.mark.parametrize("name", ["default", "hostile", "broad"])
def test_nothing_is_wider_than_the_screen(tab: Any, name: str) -> None:
    page = tab(name).open()
    model = page.locator("#matrix .name a").first.get_attribute("href")
    cell = page.locator("#matrix .tile[href]").last.get_attribute("href")
    for fragment in ("#", model, cell):
        visit(page, fragment or "#")
        for width in (360, 768, 1400, 2000):
            page.set_viewport_size({"width": width, "height": 800})
            settle(page)
            found = page.evaluate("document.documentElement.scrollWidth")
            assert found <= width, (fragment, width)


def test_three_columns_of_many_scenarios_are_seen_at_once(tab: Any) -> None:
    page = tab("wide").open()
    sizes = page.evaluate("[matrix.scrollWidth, matrix.clientWidth]")
    assert sizes[0] <= sizes[1]
    few = tab().open()
    tile = "document.querySelector('.tile').clientWidth"
    assert few.evaluate(tile) > page.evaluate(tile) >= 10
    page.set_viewport_size({"width": 2000, "height": 900})
    settle(page)
    assert page.evaluate(tile) > 12


#: What is looked for. Of axe's work three quarters are the colours, which no width changes.
EVERYTHING = "{}"
COLOURS = "{runOnly: ['cat.color']}"
ALL_BUT_CONTRAST = "{rules: {'color-contrast': {enabled: false}}}"


@pytest.mark.parametrize(
    ("width", "scheme", "name", "rules"),
    [
        (1280, "light", "default", EVERYTHING),
        (1280, "dark", "default", COLOURS),
        (360, "light", "default", ALL_BUT_CONTRAST),
        (1280, "light", "wide", ALL_BUT_CONTRAST),
    ],
)
def test_axe_finds_nothing(tab: Any, width: int, scheme: str, name: str, rules: str) -> None:
    """Nothing at all, not only nothing serious."""
    import axe_playwright_python

    page = tab(name, viewport={"width": width, "height": 900}, color_scheme=scheme).open()
    page.evaluate((Path(axe_playwright_python.__file__).parent / "axe.min.js").read_text("utf-8"))
    views = ("#", "#model=qwen3", f"#cell={DROPPED}", "#cell=multigen[bloom-vllm-pp2-read]")
    for fragment in views if name == "default" else views[:2]:
        visit(page, fragment)
        found = page.evaluate(f"async () => (await axe.run({rules})).violations")
        said = [(v["id"], v["impact"], [n["html"][:120] for n in v["nodes"][:3]]) for v in found]
        assert said == [], fragment


def test_hostile_content_is_shown_and_does_not_run(tab: Any) -> None:
    one = tab("hostile")
    page = one.open()
    links = page.locator("#cells .id").evaluate_all("all => all.map(a => a.getAttribute('href'))")
    assert len(links) == 3
    names = ids(page)
    for link, name in zip(links, names, strict=True):
        page.goto("about:blank")
        page = one.open(link)
        page.wait_for_selector("#cell .verdict")
        shown = page.locator("#cell h2").inner_text()
        assert shown.split() == name.split()
        assert hostile.ATTACK in page.locator("#cell .verdict").inner_text()
        assert hostile.EMOJI in page.locator("#cell .verdict").inner_text()
        for summary in page.locator("#cell summary").all():
            summary.click()
        assert page.evaluate("window.broken") is None
    page = one.open("#model=" + re.sub("[#&=%]", lambda m: f"%{ord(m[0]):02X}", hostile.MODEL))
    assert page.locator("#model h2").inner_text().split() == hostile.MODEL.split()
    for summary in page.locator("#model summary").all():
        summary.click()
    assert page.evaluate("window.broken") is None


def test_a_script_that_got_in_would_not_run(tab: Any) -> None:
    """The policy's negative control: markup put into the page on purpose."""
    one = tab()
    page = one.open()
    page.evaluate(
        "document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.broken=1\">')"
    )
    page.evaluate(
        "const script = document.createElement('script'); script.textContent = 'window.broken = 1';"
        "document.body.append(script)"
    )
    settle(page)
    assert page.evaluate("window.broken") is None
    assert any("Content Security Policy" in text for text in one.complaints)
    one.complaints.clear()
    one.requests.clear()


def test_an_empty_run_and_one_cell_open_and_a_page_prints(tab: Any, tmp_path: Path) -> None:
    page = tab("empty").open()
    assert "Nothing was run" in page.locator("h2.headline").inner_text()
    page = tab("one").open()
    assert len(ids(page)) == 1
    page.locator("#matrix .tile[href]").click()
    page.wait_for_selector("#cell .verdict")
    page = tab().open()
    path = tmp_path / "page.pdf"
    page.pdf(path=str(path))
    assert path.stat().st_size > 20_000


FILTER = """async () => {
  const box = document.getElementById('search');
  for (const text of ['llama', 'pp2', '', 'steering wrong', 'family07', '']) {
    box.value = text;
    box.dispatchEvent(new Event('input'));
    await new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)));
  }
}"""


def busy(page: Page, session: Any) -> float:
    """Milliseconds that the page's thread has computed: other processes do not count."""
    found = session.send("Performance.getMetrics")["metrics"]
    seconds: float = next(one["value"] for one in found if one["name"] == "TaskDuration")
    return 1000 * seconds


@pytest.mark.parametrize(
    ("name", "opening", "filtering", "cells"),
    [("default", FIRST_PAINT, FILTERING, 897), ("many", MANY, 5 * FILTERING, 10_000)],
)
def test_a_page_is_small_and_computes_little(
    tab: Any, name: str, opening: float, filtering: float, cells: int
) -> None:
    one = tab(name)
    assert one.path.stat().st_size < 5_000_000
    session = one.page.context.new_cdp_session(one.page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    page = one.open()
    assert page.locator("#found").inner_text() == f"{cells:,} cells"
    opened = busy(page, session)
    assert opened < opening
    page.evaluate(FILTER)
    assert (busy(page, session) - opened) / 6 < filtering
