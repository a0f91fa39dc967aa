"""What an engine's opening imports is imported before its worker is forked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.engines import ENVIRONMENT

#: The zygote's imports, then an engine opened as a worker opens it; what was imported for that.
OPENED = """
import importlib, json, sys
from pathlib import Path
from conformance.records import Job, from_json
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


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reports = tmp_path_factory.mktemp("reports")
    # Where another test's run has kept hf's observations, no worker starts, and no job is written.
    nothing_kept = {"CONFORMANCE_CACHE": str(tmp_path_factory.mktemp("cache"))}
    command = [sys.executable, "-m", "conformance", "run", "-m", "llama", "-k", "clean"]
    command += ["-b", "hf", "-b", "vllm-pp1", "--precision", "float32", "--reports", str(reports)]
    subprocess.run(command, check=True, capture_output=True, env={**os.environ, **nothing_kept})
    return next(reports.glob("2*")) / "groups" / "llama"


@pytest.mark.parametrize("group", ["hf+float32", "vllm-pp1+float32"])
def test_a_worker_imports_little_that_its_zygote_has_not(groups: Path, group: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", OPENED, str(groups / group / "job.json")],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, **ENVIRONMENT},
    )
    imported = json.loads(ended.stdout.splitlines()[-1])
    assert len(imported) < FEW, imported
