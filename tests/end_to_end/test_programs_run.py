"""Programs on real engines: the scenarios that everything began with get the same verdicts, and
what is drawn by chance passes.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.programs import text
from tests.end_to_end.conftest import Ran, conformance
from tests.programs.forms import charter

#: One or two of each scenario; the rest differ in a layer.
WANTED = (
    "clean-pair", "read_all-pair", "cross_consume-first-middle", "cross_write-two",
    "ablation-middle", "steering-middle-small-all", "multigen-read", "multigen-write",
    "multigen-cross",
)  # fmt: skip


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("written") / "charter_programs"
    folder.mkdir()
    for name, program in charter(4).items():
        if name in WANTED:
            plain = name.replace("-", "_")
            (folder / f"{plain}.py").write_text(text(program, plain))
    reports = tmp_path_factory.mktemp("reports")
    return conformance(
        reports, "run", "-m", "llama", "-j", "2", "--precision", "float32",
        "--scenarios", str(folder),
    )  # fmt: skip


@pytest.mark.engine
@pytest.mark.parametrize("backend", ["hf", "vllm-pp1", "vllm-pp2"])
def test_the_charter_as_programs_has_the_verdicts_of_its_scenarios(
    llama: Ran, programs: Ran, backend: str
):
    scenarios, found = llama.cells(backend), programs.cells(backend)
    assert len(found) == len(WANTED), programs.output
    for name in WANTED:
        mine = found[f"{name.replace('-', '_')}-all"]
        theirs = scenarios[name]
        assert mine.verdict.passes and theirs.meaning is not None, (name, mine.reason)
        assert mine.verdict.passes is theirs.meaning.passes, (name, theirs.reason)


@pytest.mark.slow
@pytest.mark.engine
def test_the_corpus_shows_what_it_showed_and_what_is_drawn_shows_nothing_new(
    tmp_path: Path,
):
    ran = conformance(
        tmp_path, "fuzz", "-m", "llama", "--programs", "20", "--batch", "20", "--seed", "1",
        "--frozen",
    )  # fmt: skip
    assert ran.code == 0, ran.output
    assert "20 programs in" in ran.output, ran.output
