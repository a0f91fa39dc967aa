"""Files of a run that a stranger has written: refused where they are read, for every verb."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from conformance.cli import app
from conformance.errors import ConformanceError
from conformance.runner.store import RunFolder, create_run, open_run, read_results
from conformance.spec.records import Results, to_json
from tests.report import synthetic

LEADING_OUT = "../../planted"


def run_folder(reports: Path, name: str) -> RunFolder:
    """A judged run, whole but for its observations."""
    found = synthetic.one_cell()
    folder = RunFolder(reports / name)
    folder.path.mkdir(parents=True)
    folder.write_results(replace(found, run=replace(found.run, id=name)))
    return folder


def strings(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where there are strings in a document."""
    if isinstance(value, str):
        yield path
    items: Any = ()
    if isinstance(value, dict):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for key, part in items:
        yield from strings(part, (*path, key))


def changed(document: Any, path: tuple[Any, ...], value: Any) -> str:
    """The document as JSON with another value at this path."""
    tree = inner = deepcopy(document)
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    return json.dumps(tree)


WHOLE = json.loads(to_json(synthetic.one_cell()))
IDS = [
    path
    for path in strings(WHOLE)
    if path[-1] in {"id", "model", "backend", "scenario", "case"} and path[0] != "environment"
]


@pytest.mark.parametrize("path", IDS, ids=lambda path: ".".join(map(str, path)))
def test_no_id_leads_out_of_the_reports(path: tuple[Any, ...], tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    file.write_text(changed(WHOLE, path, LEADING_OUT))
    with pytest.raises(ConformanceError) as caught:
        read_results(file)
    assert caught.value.path == file


def test_merging_writes_nothing_outside(tmp_path: Path) -> None:
    reports = tmp_path / "a" / "b" / "reports"
    run_folder(reports, "one")
    hostile = run_folder(reports, "other").path / "results.json"
    hostile.write_text(changed(json.loads(hostile.read_text()), ("run", "id"), LEADING_OUT))
    before = sorted(tmp_path.rglob("*"))
    ran = CliRunner().invoke(app, ["report", "one", "other", "--reports", str(reports)])
    assert isinstance(ran.exception, ConformanceError)
    assert sorted(tmp_path.rglob("*")) == before


PLAN: dict[str, Any] = {
    "run": "r",
    "started": "now",
    "command": "conformance run",
    "models": [{"id": "m", "architecture": "llama", "sources": []}],
    "backends": [{"id": "b", "engine": "hf"}],
    "cells": [{"model": "m", "backend": "b", "scenario": "s", "case": "c"}],
    "thresholds": {},
}
PLANNED_IDS = [
    ("run",),
    ("models", 0, "id"),
    ("backends", 0, "id"),
    *(("cells", 0, name) for name in ("model", "backend", "scenario", "case")),
]


@pytest.mark.parametrize("path", PLANNED_IDS, ids=lambda path: ".".join(map(str, path)))
def test_no_id_of_a_plan_leads_out(path: tuple[Any, ...], tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    assert RunFolder(tmp_path).plan().cells
    (tmp_path / "plan.json").write_text(changed(PLAN, path, LEADING_OUT))
    with pytest.raises(ConformanceError):
        RunFolder(tmp_path).plan()


@pytest.mark.parametrize(
    "damage",
    [Path.mkdir, lambda path: path.symlink_to(path)],
    ids=["folder", "link to itself"],
)
@pytest.mark.parametrize("name", ["results.json", "plan.json"])
def test_a_file_that_is_none_is_refused(
    name: str, damage: Callable[[Path], object], tmp_path: Path
) -> None:
    folder = run_folder(tmp_path, "r")
    (folder.path / name).unlink(missing_ok=True)
    damage(folder.path / name)
    with pytest.raises(ConformanceError) as caught:
        folder.results() if name == "results.json" else folder.plan()
    assert caught.value.path == folder.path / name


def test_reports_that_are_a_file_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "reports"
    file.touch()
    for place in (file, file / "below"):
        with pytest.raises(ConformanceError, match="no run can be kept there"):
            create_run(place, datetime.now(UTC))
        with pytest.raises(ConformanceError, match="there is no run"):
            open_run(place)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
_ANY = [*strings(WHOLE), *(path[:-1] for path in strings(WHOLE) if len(path) > 1)]


@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=50
)
@given(path=st.sampled_from(_ANY), value=_JSON)
def test_whatever_stands_in_results_is_read_or_refused(
    path: tuple[Any, ...], value: Any, tmp_path: Path
) -> None:
    file = tmp_path / "results.json"
    file.write_text(changed(WHOLE, path, value))
    try:
        found = read_results(file)
    except ConformanceError:
        return
    assert isinstance(found, Results)
    assert "/" not in found.run.id
