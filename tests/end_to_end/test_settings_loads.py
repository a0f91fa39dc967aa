"""Cells that ask other settings of the engine, on real engines: each in a load of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.spec.records import Verdict
from tests.end_to_end.conftest import conformance

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_a_column_has_cells_of_several_loads_and_each_proves_its_settings(tmp_path: Path) -> None:
    ran = conformance(
        tmp_path,
        *("run", "-m", "llama", "-b", "hf", "-b", "vllm-pp1"),
        *("-k", "chunked or preempt or repeat", "-j", "2"),
    )
    assert ran.code == 0, ran.output
    verdicts = {cell.id: cell.verdict for cell in ran.results.cells if not cell.verdict.passes}
    assert verdicts == {"chunked[llama-vllm-pp1-all]": Verdict.UNSUPPORTED}
    [refused] = [cell for cell in ran.results.cells if cell.verdict is Verdict.UNSUPPORTED]
    assert "split across steps by chunked prefill" in refused.reason
    folder = ran.folder
    found = {
        name.partition("~")[2]: group.identity["prefix_caching"]
        for model, name in folder.groups()
        if name.startswith("vllm-pp1") and (group := folder.group(model, name))
    }
    assert found == {
        "": False,
        "prefix_cache-true": True,
        "step_tokens-16": False,
        "block_tokens-32~blocks-8~length-96": False,
    }
    assert [group.backend for group in ran.results.groups].count("vllm-pp1") == 1
