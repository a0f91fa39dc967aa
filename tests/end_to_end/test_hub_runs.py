"""Models from a hub through the real command, against a server on this machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from conformance.engines.building.checkpoint_builder import build
from conformance.errors import ExitCode
from conformance.spec import checkpoints
from conformance.spec.inputs import manifest
from conformance.spec.records import CellResult, Verdict
from tests.end_to_end.conftest import ROOT, conformance
from tests.end_to_end.local_hub import Hub, serving

pytestmark = [pytest.mark.engine, pytest.mark.slow]

#: What the hub does with each model, and what its cell then says.
ENDS = {
    "served": "",
    "gated": "Access to model owner/gated is restricted",
    "absent": "Repository Not Found",
    "no-revision": "Invalid rev id",
    "broken": "without sending complete message body",
}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """A tiny llama in shards with an index."""
    [llama] = [one for one in manifest.load(ROOT / "models.yaml").models if one.id == "llama"]
    made = checkpoints.obtain(llama, checkpoints.cache_folder(), build)
    folder = tmp_path / "weights"
    AutoModelForCausalLM.from_pretrained(made.path).save_pretrained(folder, max_shard_size="2MB")
    AutoTokenizer.from_pretrained(made.path).save_pretrained(folder)
    assert (folder / "model.safetensors.index.json").is_file()
    return folder


def fill(hub: Hub, weights: Path) -> Mapping[str, Any]:
    """Serve the weights under every name, and return the entries of models.yaml."""
    commits = {name: hub.add(f"owner/{name}", weights) for name in ENDS}
    hub.gated.add("owner/gated")
    del hub.repositories["owner/absent"]
    hub.repositories["owner/no-revision"] = {"0" * 40: {}}
    files = hub.repositories["owner/broken"]
    files[commits["broken"]] = {**files[commits["broken"]], "more.safetensors": b"half of it"}
    hub.broken.add("more.safetensors")
    return {
        name: {"architecture": "llama", "sources": [{"hub": f"owner/{name}", "revision": commit}]}
        for name, commit in commits.items()
    }


def test_each_end_of_a_hub_is_told_and_a_filled_cache_needs_none(
    tmp_path: Path, weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(cache: str, *models: str) -> dict[str, CellResult]:
        monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / cache))
        chosen = [word for model in models for word in ("-m", model)]
        which = ("-b", "hf", "-k", "clean[ and alone", "--precision", "float32")
        places = ("--models", str(tmp_path / "models.yaml"), "--trust")
        ran = conformance(tmp_path / cache, "run", *places, *chosen, *which)
        assert ran.code == ExitCode.HARNESS, ran.output  # of those that cannot be had
        return {cell.model: cell for cell in ran.results.cells}

    with serving() as hub:
        entries = {"extends": "built-in", "models": fill(hub, weights)}
        (tmp_path / "models.yaml").write_text(yaml.safe_dump(entries))
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
        monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "no-token"))
        cells = run("first", *ENDS)
        hub.asked.clear()
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
        offline = run("second", "served", "broken")
        assert not hub.asked
    for served in (cells.pop("served"), offline["served"]):
        assert served.verdict.passes, served.reason
    for model, cell in cells.items():
        assert cell.verdict is Verdict.MISSING and ENDS[model] in cell.reason, cell.reason
    assert "cannot find the requested files in the local cache" in offline["broken"].reason
