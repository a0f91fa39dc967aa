"""A self-test that was interrupted goes on with what it has."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.commands.selftest import run as command
from conformance.errors import ConformanceError
from conformance.runner.store import open_run
from conformance.spec.checkpoints import cache_folder
from conformance.spec.inputs import manifest
from conformance.spec.records import Thresholds

ROOT = Path(__file__).parents[3]


def request(reports: Path, **more: object) -> command.SelfTestRequest:
    known = manifest.load(ROOT / "models.yaml")
    asked = command.SelfTestRequest(
        models=tuple(model for model in known.models if model.id == "llama"),
        backends=tuple(backend for backend in known.backends if backend.id == "hf"),
        scenarios=(ROOT / "scenarios",),
        reports=reports,
        thresholds=Thresholds(),
        expression="layer-off",
        quick=True,
        jobs=2,
    )
    return replace(asked, **more)


@pytest.mark.engine
def test_what_was_gathered_stays_and_what_is_missing_is_gathered(tmp_path: Path) -> None:
    folder, whole = command.run(request(tmp_path), cache_folder(), lambda _: None)
    assert whole is not None and whole.rows
    group = folder.group_folder("llama", "hf@faults+float32")
    [lost, *kept] = sorted(group.path.glob("cells/*@layer-off*"))
    written = {cell: cell.stat().st_mtime_ns for cell in kept}
    (lost / "outcome.json").unlink()
    again = request(tmp_path, resume=folder.id)
    same, resumed = command.run(again, cache_folder(), lambda _: None)
    assert same.path == folder.path and resumed is not None
    assert (lost / "outcome.json").is_file()
    assert {cell: cell.stat().st_mtime_ns for cell in kept} == written
    assert [row.ending for row in resumed.rows] == [row.ending for row in whole.rows]


def test_one_that_was_begun_with_other_options_is_refused(tmp_path: Path) -> None:
    scenarios = command.discover((ROOT / "scenarios",))
    first = request(tmp_path)
    folder = command._folder(first, command._planned(first, scenarios))
    assert open_run(tmp_path, folder.id).path == folder.path
    for way in ("resume", "again"):
        same = request(tmp_path, **{way: folder.id})
        assert command._folder(same, command._planned(same, scenarios)).path == folder.path
        for more in ({"expression": "token-off or write-dropped"}, {"quick": False}):
            other = replace(same, **more)
            with pytest.raises(ConformanceError, match="other options"):
                command._folder(other, command._planned(other, scenarios))


def test_the_controls_are_not_tried_on_less_than_they_ask_for(tmp_path: Path) -> None:
    """Else the sound judge would seem to miss what was never injected."""
    first = request(tmp_path)
    folder = command._folder(first, command._planned(first, command.discover(first.scenarios)))
    with pytest.raises(ConformanceError, match="other options"):
        next(command.controlled(request(tmp_path, again=folder.id, quick=False)))
