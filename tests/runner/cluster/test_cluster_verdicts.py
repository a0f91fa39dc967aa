"""A run on several nodes has the verdicts of a run on one machine, to the last figure."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.spec import loose_json
from tests.runner.cluster.nodes import Nodes, nodes

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.slow, pytest.mark.engine]
pytest.importorskip("ray")

#: What differs between two runs of the same: when it was, how long it took, where it lies.
_PASSING = {"seconds", "command"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Two nodes, each with a cache of its own: what they need has to travel."""
    caches = tmp_path_factory.mktemp("nodes")
    with nodes() as started:
        for name in ("one", "two"):
            started.add(name, cpus=2, CONFORMANCE_CACHE=str(caches / name))
        yield started


def results(reports: Path, *more: str) -> dict[str, Any]:
    """Of a run that takes nothing from a cache of observations."""
    words = ["run", "-m", "llama", "-b", "hf", "-k", "clean or steering", "--reports", str(reports)]
    ran = subprocess.run(
        [sys.executable, "-m", "conformance", *words, *more],
        cwd=ROOT,
        env={**os.environ, "CONFORMANCE_CACHE": str(reports / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    found: dict[str, Any] = loose_json.mapping(reports / "latest" / "results.json")
    return found


def lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: lasting(each) for name, each in value.items() if name not in _PASSING}
    return [lasting(each) for each in value] if isinstance(value, list) else value


@pytest.mark.parametrize("through", ["network", "client"])
def test_the_verdicts_are_those_of_one_machine(
    cluster: Nodes, through: str, tmp_path: Path
) -> None:
    alone = results(tmp_path / "alone")
    assert not any(each["reused"] for each in alone["groups"])
    place = cluster.address.place if through == "network" else cluster.client()
    spread = results(tmp_path / "spread", "--on", place)
    assert alone["cells"] and lasting(spread["cells"]) == lasting(alone["cells"])
    assert spread["groups"] and all(each["machine"] for each in spread["groups"])
    assert not any(each["machine"] for each in alone["groups"])
    page = (tmp_path / "spread" / "latest" / "index.html").read_text(encoding="utf-8")
    assert "Machines" in page
