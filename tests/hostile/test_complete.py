"""Whatever is read from a file has its kind of hostile inputs, and loose JSON one reader."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.cli import VERBS
from tests.hostile import arguments, readers

PACKAGE = Path(__file__).parents[2] / "conformance"

#: Where a file is read → its kind of inputs.
READ = {
    "api.py json.loads": "what a command of ours says",
    "bisect/history/locks.py text_file.read": "lock file",
    "bisect/history/releases.py json.loads": "what a command says",
    "bisect/state.py State": "state.json",
    "check/gather.py loose_json.mapping": "config.json",
    "check/kept.py Kept": "check.json",
    "check/kept.py text_file.read": "a sibling of the user's file",
    "check/models.py loose_json.mapping": "config.json",
    "check/source.py text_file.read": "user's file",
    "check/searching.py Edits": "edits.json",
    "check/script.py Job": "job.json",
    "check/values/naming.py loose_json.parsed": "names of a check",
    "cli/new_project.py text_file.read": "pyproject.toml",
    "cli/selecting.py loose_json.mapping": "check.json",
    "engines/building/checkpoint_builder.py json.loads": "a tokenizer made here",
    "engines/reference/engine.py loose_json.mapping": "a seal, in the cache",
    "engines/vllm/engine.py loose_json.mapping": "config.json",
    "environments/resolving.py _Noted": "what a command of ours says",
    "environments/building.py loose_json.mapping": "what a command of ours says",
    "execution.py RunInfo": "run.json",
    "fuzz/campaign.py State": "campaign.json",
    "fuzz/corpus.py Entry": "corpus",
    "inputs/usable.py loose_json.parsed": "weights",
    "inputs/usable.py loose_json.read": "config.json",
    "inputs/yaml_input.py text_file.read": "models.yaml",
    "planning/selection.py text_file.read": "cells",
    "report/sections/selftest.py SelfTest": "selftest.json",
    "runner/attempt.py loose_json.parsed": "events.jsonl",
    "runner/zygotes.py json.loads": "what a command of ours says",
    "engines/vllm/without_nnsight.py json.loads": "what a command of ours says",
    "selftest/detection.py SelfTest": "selftest.json",
    "store/details.py json.loads": "what a command of ours says",
    "store/keeping.py Kept": "results.json",
    "store/keeping.py _Cells": "results.json",
    "store/keeping.py loose_json.mapping": "results.json",
    "store/cache.py Group": "digests.json",
    "store/cache.py Outcome": "outcome.json",
    "store/installed_files.py json.loads": "what a command of ours says",
    "store/cache.py loose_json.mapping": "digests.json",
    "store/event_log.py loose_json.parsed": "events.jsonl",
    "store/files.py kind": "plan.json",
    "store/files.py loose_json.parsed": "plan.json",
    "store/folder.py Group": "group.json",
    "store/folder.py Outcome": "outcome.json",
    "store/folder.py Results": "results.json",
    "store/folder.py RunPlan": "plan.json",
    "store/folder.py loose_json.mapping": "keys.json",
    "store/folder.py loose_json.parsed": "results.json",
    "store/keys.py json.loads": "what a command of ours says",
    "sweep/page.py loose_json.parsed": "observations of a sweep",
    "sweep/points.py Swept": "points.json",
    "worker/main.py Job": "job.json",
    "worker/zygote.py json.loads": "what a command of ours says",
}
#: What is no file of a run or of a user's: nobody else writes it.
OURS = {
    "a seal, in the cache",
    "a tokenizer made here",
    "what a command of ours says",
    "what a command says",
}

_LOOSE = {"loose_json.mapping", "loose_json.parsed", "loose_json.read"}
_OF_RECORDS = {"read_record", "record_in"}
_READERS = {"json.load", "json.loads", "text_file.read"} | _LOOSE
#: What makes plain data of a record of ours, which is no text of anybody's.
_PLAIN = ("to_json(", "json.dumps(")


def _read_in(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called.rpartition(".")[2] in _OF_RECORDS:
            yield ast.unparse(node.args[0]).rpartition(".")[2]
        elif called in _READERS and not ast.unparse(node.args[0]).startswith(_PLAIN):
            yield called


def test_every_file_that_is_read_has_its_kind() -> None:
    found = {
        f"{path.relative_to(PACKAGE)} {what}"
        for path in PACKAGE.rglob("*.py")
        if path.name != "loose_json.py"
        for what in _read_in(path)
    }
    assert found == READ.keys()
    assert set(READ.values()) - OURS <= readers.KINDS.keys()


def test_no_file_is_given_to_a_parser_of_json_but_by_its_one_reader() -> None:
    """Whoever calls that one forgets what is nested too deeply, or cannot be read."""
    direct = {name for name in READ if "json.load" in name and "loose_json" not in name}
    assert {READ[name] for name in direct} <= OURS
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        assert "from json import load" not in text, path


@pytest.mark.parametrize("name", VERBS)
def test_every_verb_is_drawn_with_every_option(name: str) -> None:
    drawn = [verb for line, verb in arguments.VERBS.items() if line.split()[0] == name]
    assert drawn
    assert all("--help" not in verb.options for verb in drawn)
    if name == "selftest":
        assert {"--blind", "--widen", "--controls", "--resume"} <= set(drawn[0].options)
