"""A low-rank adapter on every column, and on one that leaves it out."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from conformance.engines import hf
from conformance.spec.records import Job, Verdict
from tests.end_to_end.conftest import Ran

pytestmark = pytest.mark.engine


def open_engine(job: Job) -> Any:
    """transformers without the model's adapter."""
    with mock.patch.object(hf, "adapter_of", return_value=None):
        return hf.open_engine(job)


def test_an_adapter_is_applied_on_every_column_and_missed_where_it_is_not(broken: Ran) -> None:
    cells = [cell for cell in broken.results.cells if cell.model == "llama-lora"]
    for column in ("hf", "vllm-pp1", "vllm-pp2"):
        verdicts = [cell.verdict for cell in cells if cell.backend == column]
        assert verdicts and all(verdict.passes for verdict in verdicts), broken.output
    without = [cell.verdict for cell in cells if cell.backend == "hf-without-adapter"]
    # No reading of a layer's output is the reference's stream: found before any scenario runs.
    assert without and set(without) == {Verdict.STRUCTURE}
