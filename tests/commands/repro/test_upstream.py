"""The texts for upstream in the repository: each holds a script that can be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.commands.repro import rerun
from conformance.commands.repro.issue import script_in
from conformance.judge import expectations
from tests import ours
from tests.commands.repro.conftest import ROOT

FOLDER = ROOT / "docs" / "upstream"
TEXTS = sorted({path.stem for path in FOLDER.glob("*.md")} - {"README"})


@pytest.mark.parametrize("name", TEXTS)
def test_the_script_of_a_text_is_of_a_scenario_as_it_is_now(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.py"
    path.write_text(script_in((FOLDER / f"{name}.md").read_text(encoding="utf-8")))
    read = rerun.read(path)
    info = ours.scenarios()[read.recorded.cell.scenario].info()
    assert info.trace_source in read.scenario
    assert info.reference_source in read.scenario


def test_the_index_names_every_text() -> None:
    index = (FOLDER / "README.md").read_text(encoding="utf-8")
    assert all(f"({name}.md)" in index for name in TEXTS)


#: Words of a reason → why there is no text of it.
NO_TEXT = {
    "On CUDA, vLLM's norms": "its script needs a GPU",
    "a norm of each query or key head": "its block is refused before nnsight could go wrong",
    "torch has that kernel": "its script needs a processor, or a setting, without AVX-512",
}


def test_every_gap_that_is_somebodys_has_its_text() -> None:
    entries = [entry for entry in expectations.load(ROOT / "known.yaml").entries if entry.whose]
    assert entries
    without = [
        entry.reason for entry in entries if not (entry.link and (ROOT / entry.link).is_file())
    ]
    assert all(any(words in reason for words in NO_TEXT) for reason in without), without
    assert all(any(words in reason for reason in without) for words in NO_TEXT)
    linked = [Path(entry.link) for entry in entries if entry.link]
    # What other libraries' columns show has its scripts in docs/libraries.
    assert {path.stem for path in linked if path.parent.name == FOLDER.name} == {*TEXTS}
