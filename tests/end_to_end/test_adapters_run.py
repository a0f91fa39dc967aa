"""A low-rank adapter on every column, and on one that leaves it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from conformance.engines import hf
from conformance.records import Job, Verdict
from tests.end_to_end.conftest import conformance

pytestmark = pytest.mark.engine

MANIFEST = """\
extends: built-in
models: {}
backends:
  hf-without-adapter: { engine: "tests.end_to_end.test_adapters_run:open_engine", default: false }
"""


def open_engine(job: Job) -> Any:
    """transformers without the model's adapter."""
    with mock.patch.object(hf, "adapter_of", return_value=None):
        return hf.open_engine(job)


def test_an_adapter_is_applied_on_every_column_and_missed_where_it_is_not(tmp_path: Path) -> None:
    manifest = tmp_path / "models.yaml"
    manifest.write_text(MANIFEST)
    columns = [word for name in ("hf", "vllm-pp1", "vllm-pp2", "hf-without-adapter")
               for word in ("-b", name)]  # fmt: skip
    ran = conformance(
        tmp_path / "reports", "run", "--models", str(manifest), "-m", "llama-lora", *columns,
        "-k", "clean or cross_write", "--trust",
    )  # fmt: skip
    for column in ("hf", "vllm-pp1", "vllm-pp2"):
        cells = ran.cells(column)
        assert cells and all(cell.verdict.passes for cell in cells.values()), ran.output
    without = ran.cells("hf-without-adapter")
    # No reading of a layer's output is the truth's stream: found before any scenario runs.
    assert without and all(cell.verdict is Verdict.STRUCTURE for cell in without.values())
