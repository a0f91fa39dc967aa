"""What docstrings, comments, messages and pages name is there: documents, sections, files, modules.

A section is named as `docs/numerics.md#gain`: the page, and the heading as GitHub makes an
address of it. Another way of naming one (a bare "numerics: …") is refused, because nothing could
hold it.
"""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from conformance.commands.gate.files import SUMMARY

ROOT = Path(__file__).parents[2]
#: Pages that the program writes into a run's folder.
WRITTEN = {SUMMARY, "report.md", "step.md"}
DOCUMENT = re.compile(r"(?<![\w./-])((?:[\w.-]+/)*[\w-]+\.md)\b(?:#([\w-]+))?")
IN_DOCS = re.compile(r"(?<![\w./-])docs/[\w/.-]*\w")
MODULE = re.compile(r"`(conformance(?:\.[a-z_]\w*)+)((?:\.[A-Z]\w*)?)`")
OURS = re.compile(r"(?<![\w./-])(?:conformance|scenarios|tests|bench|scripts)/[\w/.-]*\w")
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)?(?:#([\w-]+))?\)")
#: Places that only a wheel has: `conformance.spec.inputs.built_in_files`.
IN_A_WHEEL = "conformance/packaged/"
STEMS = "|".join(sorted(path.stem for path in (ROOT / "docs").glob("*.md")))
LOOSE = re.compile(
    rf"(?<![\w./-])(?:\((?:{STEMS}|relay|float32): |\bof (?:{STEMS})\b\"|classifier's chapter"
    rf"|chapter on \w+ in )"
)


def _tracked() -> list[Path]:
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout.split()  # fmt: skip
    return [ROOT / name for name in listed if (ROOT / name).is_file()]


FILES = _tracked()
SOURCES = [
    path
    for path in FILES
    if path.suffix in {".py", ".yaml", ".toml", ".j2", ".sh", ".yml"} or path.name == "Makefile"
    if path != Path(__file__) and path.name != "mkdocs.yml"  # which `make docs-site` holds
]
PAGES = [path for path in FILES if path.suffix == ".md"]


@cache
def anchors(page: Path) -> set[str]:
    """The addresses of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    plain = (re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings)
    return {heading.strip().replace(" ", "-") for heading in plain}


def broken(text: str) -> list[str]:
    """What a text names that is not there."""
    text = text.replace('"docs" / "', '"docs/')
    names = []
    for name, section in DOCUMENT.findall(text):
        if name in WRITTEN:
            continue
        page = ROOT / name
        if not page.is_file():
            names.append(f"{name}: no such page")
        elif section and section not in anchors(page):
            names.append(f"{name}#{section}: no such heading")
    files = {*IN_DOCS.findall(text), *OURS.findall(text)}
    files = {name for name in files if not name.startswith(IN_A_WHEEL)}
    names += [f"{name}: no such file" for name in files if not (ROOT / name).exists()]
    names += [f"{loose!r}: name a page and its heading" for loose in LOOSE.findall(text)]
    names += [f"{name}: no such module" for name, _ in MODULE.findall(text) if not _module(name)]
    return names


def _module(name: str) -> bool:
    """Whether this is a module, or something in one."""
    for module in (name, name.rpartition(".")[0]):
        path = ROOT.joinpath(*module.split("."))
        if path.with_suffix(".py").is_file():
            attribute = name[len(module) + 1 :]
            return not attribute or re.search(
                rf"^(?:def |class |async def )?{attribute}\b", path.with_suffix(".py").read_text(),
                re.MULTILINE,
            ) is not None  # fmt: skip
        if path.is_dir():
            attribute = name[len(module) + 1 :]
            return not attribute or attribute in (path / "__init__.py").read_text()
    return False


def find_offenders(paths: list[Path], check: Callable[[Path], list[str]]) -> dict[str, list[str]]:
    """What `check` finds, by file: all of it at once."""
    found = {str(path.relative_to(ROOT)): check(path) for path in paths}
    return {name: names for name, names in found.items() if names}


def broken_in_source(path: Path) -> list[str]:
    return broken(path.read_text(encoding="utf-8"))


def broken_in_page(page: Path) -> list[str]:
    text = page.read_text(encoding="utf-8")
    names = []
    for target, section in LINK.findall(text):
        linked = (page.parent / target).resolve() if target else page
        if not linked.exists():
            names.append(f"{target}: no such file")
        elif section and section not in anchors(linked):
            names.append(f"{target}#{section}: no such heading")
    outside = LINK.sub("]", text)
    return names + broken(re.sub(r"\[([\w./]+\.md)\]", "", outside))


def test_what_the_sources_name_is_there() -> None:
    assert find_offenders(SOURCES, broken_in_source) == {}
    assert len(SOURCES) > 500


def test_what_the_pages_name_and_link_to_is_there() -> None:
    assert find_offenders(PAGES, broken_in_page) == {}
    assert len(PAGES) > 20


def test_a_page_is_named_with_each_of_its_broken_links(monkeypatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "a.md").write_text("# A\n[b](b.md), [c](a.md#c), [a](a.md#a)\n")
    assert find_offenders([tmp_path / "a.md"], broken_in_page) == {
        "a.md": ["b.md: no such file", "a.md#c: no such heading"]
    }


@pytest.mark.parametrize(
    "text",
    [
        '"""See docs/nowhere.md."""',
        "# faults.md: alias",
        "# formulas in docs/nowhere",
        "# docs/report.md#no-such-heading",
        "# docs/ci.md, (numerics: metrics)".replace("numerics", "report"),
        "# as `conformance.nowhere.at_all` says",
        "# as `conformance.errors.Nothing_such` says".replace("Nothing_such", "nothing_such"),
        "# conformance/engines/nowhere.py",
    ],
)
def test_a_name_of_nothing_is_found(text: str) -> None:
    assert broken(text)


def test_a_page_and_its_heading_are_found() -> None:
    assert broken("# docs/report.md#numbers and `conformance.errors`, docs/gaps") == []
    assert importlib.util.find_spec("conformance.errors")
