"""What a cell depended on: the files that its scenario opened, the modules that it imports."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from conformance.runner.scheduling.reuse import finished_before
from conformance.runner.store import GroupFolder, ObservationCache
from conformance.runner.store.keys import are_unchanged
from conformance.spec.records import Case, Group, Outcome, Status
from conformance.spec.scenario import discover
from conformance.worker.opened import Opened

FILES = {
    "reader.py": (
        "'''Reads.'''\n"
        "from pathlib import Path\n"
        "from conformance import scenario\n"
        "from .helpers import factor\n"
        "from .other import KEPT\n"
        "DATA = Path(__file__).parent / 'deep' / 'vector.txt'\n"
        "@scenario()\n"
        "def reader(lm, case):\n"
        "    return factor(DATA.read_text()) + KEPT\n"
    ),
    "other.py": (
        "'''Is another.'''\n"
        "from conformance import scenario\nKEPT = '1'\n@scenario()\ndef other(lm, case): ...\n"
    ),
    "lonely.py": (
        "'''Reads nothing.'''\n"
        "from conformance import scenario\n@scenario()\ndef lonely(lm, case): ...\n"
    ),
    "_shared.py": "",
    "helpers/__init__.py": "from .inner import factor\n",
    "helpers/inner.py": "def factor(text): return 2 * text\n",
    "deep/vector.txt": "1 2 3",
}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    root = tmp_path / f"traces_{os.getpid()}_{tmp_path.name.replace('-', '_')}"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        os.utime(path, (1_000_000_000, 1_000_000_000))
    yield root
    for name in [name for name in sys.modules if name.partition(".")[0] == root.name]:
        del sys.modules[name]


@pytest.fixture
def seen(folder: Path) -> dict[str, str]:
    """What one run of `reader` depended on."""
    opened = Opened((), [folder])
    scenarios = discover(folder)
    opened.keep_shared()
    opened.begin()
    assert scenarios["reader"].run(None, Case("reader", "all", ("a",))) == "1 2 31 2 31"
    return opened.since(scenarios["reader"])


def test_it_names_what_was_opened_and_imported_and_no_other_scenario(
    seen: dict[str, str],
) -> None:
    names = {name.removeprefix("0:") for name in seen}
    assert {"deep/vector.txt", "helpers/inner.py", "helpers/__init__.py", "other.py"} <= names
    assert "lonely.py" not in names and not any("site-packages" in name for name in names)


@pytest.mark.parametrize("name", ["deep/vector.txt", "helpers/inner.py", "other.py"])
def test_a_change_of_one_of_them_is_seen_here_and_in_the_cache(
    folder: Path, seen: dict[str, str], tmp_path: Path, name: str
) -> None:
    group = GroupFolder(tmp_path / "run")
    group.write_group(Group("llama", "hf"))
    group.write_cell("reader.all", Outcome(Status.OK, opened=seen), {"value": torch.ones(1)})
    group.write_keys({"reader.all": "key"})
    cache = ObservationCache(tmp_path / "cache")
    assert cache.keep("c0ffee", group, "reader.all")
    elsewhere = GroupFolder(tmp_path / "elsewhere")
    assert cache.fetch("c0ffee", elsewhere, "reader.all", [folder]) is not None
    assert finished_before(group, {"reader.all": "key"}, folders=[folder])
    (folder / name).write_text("KEPT = '2'\n")
    assert not are_unchanged(seen, [folder])
    assert cache.fetch("c0ffee", elsewhere, "reader.all", [folder]) is None
    assert not finished_before(group, {"reader.all": "key"}, folders=[folder])


def test_a_copy_of_the_folder_is_asked_for_its_own_file(
    folder: Path, seen: dict[str, str], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    folder.rename(copy)
    assert are_unchanged(seen, [copy])
    (copy / "deep" / "vector.txt").write_text("4")
    assert not are_unchanged(seen, [copy])
