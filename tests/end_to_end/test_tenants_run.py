"""Several requests at once on real engines: which are held to the bits that each has alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.runner.store import gathered_in
from conformance.spec.records import Precision
from tests.end_to_end.conftest import conformance

pytestmark = [pytest.mark.engine, pytest.mark.slow]


def test_an_engine_is_asked_if_neighbours_change_bits_and_held_to_what_it_says(
    tmp_path: Path,
) -> None:
    columns = ("hf", "vllm-pp1", "vllm-async", "vllm-serve")
    named = [word for column in columns for word in ("-b", column)]
    ran = conformance(tmp_path, "run", "-m", "llama", *named, "-k", "tenants", "-j", "2")
    assert ran.code == 0, ran.output
    kept = {}
    for column in columns:
        groups = [ran.folder.group("llama", gathered_in(column, kind)) for kind in Precision]
        kept[column] = [group is not None and group.bitwise_beside for group in groups]
    assert kept.pop("hf") == [False, False]  # a batch there has padding
    assert list(kept.values()) == [[True, True]] * 3
    judged = [cell for cell in ran.results.cells if cell.verdict.passes]
    assert len(judged) == 5  # one of each column, and both on nnsight-serve
    for cell in judged:
        rules = {rule.name: rule.holds for rule in cell.relations}
        assert rules["stream ≡ alone"] and rules["logits ≡ alone_logits"]
