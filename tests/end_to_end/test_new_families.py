"""A family that no code mentions needs an entry in models.yaml, and nothing else."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import store
from conformance.records import PASSING
from tests import ours

ROOT = Path(__file__).parents[2]
FAMILIES = ("nemotron", "starcoder2")
ENTRIES = """\
models:
  nemotron:
    tiny: {SHARED, head_dim: 64}
  starcoder2:
    tiny: {SHARED, sliding_window: 16}
backends:
  hf: {engine: hf}
  vllm-pp1: {engine: vllm}
  vllm-pp2: {engine: vllm, pipeline: 2}
""".replace(
    "SHARED",
    "vocab_size: 512, hidden_size: 256, num_hidden_layers: 4, num_attention_heads: 4, "
    "num_key_value_heads: 2, intermediate_size: 704, max_position_embeddings: 1024, "
    "initializer_range: 0.1",
)


def test_no_code_mentions_them():
    sources = [*(ROOT / "conformance").rglob("*.py"), *ours.files()]
    assert len(sources) > 100
    mentioned = re.compile("|".join(FAMILIES), re.IGNORECASE)
    found = [path for path in sources if mentioned.search(path.read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.slow
@pytest.mark.engine
def test_they_pass_on_every_engine(tmp_path):
    (tmp_path / "models.yaml").write_text(ENTRIES)
    command = [sys.executable, "-m", "conformance", "run", "-j", "1"]
    command += ["--models", str(tmp_path / "models.yaml"), "--reports", str(tmp_path / "reports")]
    command += ["-k", "read_all or (steering and middle) or (cross_write and one)"]
    ran = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "CONFORMANCE_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-3000:] + ran.stderr[-1000:]
    results = store.open_run(tmp_path / "reports", "latest").results()
    assert {(cell.model, cell.backend) for cell in results.cells} == {
        (family, backend) for family in FAMILIES for backend in ("hf", "vllm-pp1", "vllm-pp2")
    }
    assert len(results.cells) == 2 * 3 * 7
    assert [cell.id for cell in results.cells if cell.verdict not in PASSING] == []
