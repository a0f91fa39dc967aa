"""Programs on real engines: the scenarios that everything began with get the same verdicts, and
what is drawn by chance passes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.end_to_end.conftest import PROGRAMS, Ran, conformance


@pytest.mark.engine
@pytest.mark.parametrize("backend", ["hf", "vllm-pp1", "vllm-pp2"])
def test_the_charter_as_programs_has_the_verdicts_of_its_scenarios(llama: Ran, backend: str):
    cells = llama.cells(backend)
    for name in PROGRAMS:
        mine = cells[f"{name.replace('-', '_')}-all"]
        theirs = cells[name]
        assert mine.verdict.passes and theirs.meaning is not None, (name, mine.reason)
        assert mine.verdict.passes is theirs.meaning.passes, (name, theirs.reason)


@pytest.mark.slow
@pytest.mark.engine
def test_the_corpus_shows_what_it_showed_and_what_is_drawn_shows_nothing_new(tmp_path: Path):
    ran = conformance(
        tmp_path, "fuzz", "-m", "llama", "--programs", "20", "--batch", "20", "--seed", "1",
        "--frozen",
    )  # fmt: skip
    assert ran.code == 0, ran.output
    assert "20 programs in" in ran.output, ran.output
