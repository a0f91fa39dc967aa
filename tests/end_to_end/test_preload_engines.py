"""What an engine's opening imports is imported before its worker is forked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.engines import ENGINES, ENVIRONMENT
from conformance.spec.records import Job, from_json, to_json
from tests.end_to_end.conftest import Ran

pytestmark = pytest.mark.engine

#: The zygote's imports, then an engine opened as a worker opens it; what was imported for that.
OPENED = """
import importlib, json, sys
from pathlib import Path
from conformance.spec.records import Job, from_json
from conformance.engines import preload
job = from_json(Job, Path(sys.argv[1]).read_bytes())
importlib.import_module(preload(job.column.engine))
before = set(sys.modules)
module, _, function = job.engine.partition(":")
engine = getattr(importlib.import_module(module), function)(job)
print(json.dumps(sorted(set(sys.modules) - before)))
engine.close()
"""
#: The model's own modules, and what torch's compiler lists when it is asked for its back ends.
FEW = 30


@pytest.mark.parametrize("backend", ["hf", "vllm-pp1"])
def test_a_worker_imports_little_that_its_zygote_has_not(
    llama: Ran, backend: str, tmp_path: Path
) -> None:
    """Open the engine of a backend with the job of a run."""
    # That of vLLM: where an earlier run has kept hf's observations, hf gets no worker and no job.
    written = llama.folder.group_folder("llama", "vllm-pp1+float32").path / "job.json"
    [column] = [each for each in llama.results.columns if each.id == backend]
    job = replace(
        from_json(Job, written.read_bytes()), engine=ENGINES[column.engine], column=column
    )
    (tmp_path / "job.json").write_text(to_json(job))
    ended = subprocess.run(
        [sys.executable, "-c", OPENED, str(tmp_path / "job.json")],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    imported = json.loads(ended.stdout.splitlines()[-1])
    assert len(imported) < FEW, imported
