"""The engine's own extraction, on a real engine: bit for bit what a block reads."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.spec.records import Verdict
from tests.end_to_end.conftest import conformance

pytestmark = [pytest.mark.engine, pytest.mark.slow]


@pytest.mark.parametrize("backend", ["vllm-tp2", "vllm-async", "vllm-serve"])
def test_what_another_process_refuses_is_refused(tmp_path: Path, backend: str) -> None:
    ran = conformance(tmp_path, "run", "-m", "gpt2", "-b", backend, "-k", "extract and alone")
    [cell] = ran.results.cells
    assert cell.verdict is Verdict.UNSUPPORTED, cell.reason
    assert "EAGLE3" in cell.reason


def test_every_sample_of_a_streaming_engine_comes_home(tmp_path: Path) -> None:
    ran = conformance(tmp_path, "run", "-m", "llama", "-b", "vllm-async", "-k", "samples")
    [cell] = ran.results.cells
    assert cell.verdict.passes, cell.reason


def test_the_engine_hands_out_what_is_read_or_refuses_in_its_own_words(tmp_path: Path) -> None:
    models = ("-m", "llama", "-m", "gpt2")
    ran = conformance(tmp_path, "run", *models, "-k", "extract", "-j", "2")
    assert ran.code == 0, ran.output  # what fails is known, and known by these words
    cells = {(cell.model, cell.backend, cell.case): cell for cell in ran.results.cells}
    for case in ("alone", "pair", "last"):
        right = cells["llama", "vllm-pp1", case]
        assert right.verdict.passes, right.reason
        [same] = [rule for rule in right.relations if "extracted" in rule.name]
        assert same.holds
        assert "SupportsPP" in cells["llama", "vllm-pp2", case].reason
        assert "EAGLE3" in cells["gpt2", "vllm-pp1", case].reason
    assert cells["llama", "hf", "alone"].verdict.passes
    assert cells["llama", "hf", "last"].verdict is Verdict.UNSUPPORTED
    asked = ran.folder.group("llama", "vllm-pp1")
    assert asked is not None and asked.identity["extraction"] is True
    left = ran.folder.group_folder("llama", "vllm-pp1").path.glob("**/*.lock")
    assert list(left) == [], "what was handed out is in the observations, and nowhere else"
