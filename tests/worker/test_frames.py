"""Whose a frame is, is decided by where the packages lie, and by no word in a path."""

from __future__ import annotations

import json
import sys
import sysconfig
from pathlib import Path

import pytest
import torch

from conformance.spec.records import Owner
from conformance.worker.frames import frames, roots

#: A clone of this name, with its environment inside: each word of a path misleads.
CLONE = Path("/home/nnsight/vllm/conformance")
PACKAGES = CLONE / ".venv" / "lib" / "python3.11" / "site-packages"
ROOTS = {
    CLONE / "conformance": Owner.HARNESS,
    CLONE / "conformance" / "engines" / "vllm" / "relay": Owner.PIPELINE,
    CLONE / "scenarios": Owner.SCENARIO,
    PACKAGES / "nnsight": Owner.NNSIGHT,
    PACKAGES / "vllm": Owner.ENGINE,
}


def line(path: Path | str, number: int = 3) -> str:
    return f'  File "{path}", line {number}, in f\n    call()\n'


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        (PACKAGES / "nnsight" / "envoy.py", Owner.NNSIGHT),
        (PACKAGES / "vllm" / "conformance" / "x.py", Owner.ENGINE),
        (PACKAGES / "torch" / "nn" / "modules" / "module.py", None),
        (CLONE / "conformance" / "engines" / "vllm" / "engine.py", Owner.HARNESS),
        (CLONE / "conformance" / "engines" / "vllm" / "relay" / "stage.py", Owner.PIPELINE),
        (CLONE / "scenarios" / "steering.py", Owner.SCENARIO),
        ("<edit-1397>", Owner.SCENARIO),
        ("<frozen importlib._bootstrap>", None),
        ("/usr/lib/python3.11/conformance/x.py", None),
    ],
)
def test_the_place_decides(path: Path | str, owner: Owner | None) -> None:
    found = frames(line(path), ROOTS)
    assert [frame.owner for frame in found] == ([owner] if owner else [])


def test_a_frame_is_named_from_its_package_on_and_a_cause_comes_last() -> None:
    [frame] = frames(line(PACKAGES / "vllm" / "v1" / "core.py", 12), ROOTS)
    assert (frame.file, frame.line) == ("vllm/v1/core.py", 12)
    cause, wrapper = line(PACKAGES / "vllm" / "x.py"), line(PACKAGES / "nnsight" / "y.py")
    text = f"{cause}KeyError\n\nThe above exception was the direct cause of the following "
    found = frames(f"{text}exception:\n\n{wrapper}RuntimeError", ROOTS)
    assert [frame.owner for frame in found] == [Owner.NNSIGHT, Owner.ENGINE]


def test_the_roots_are_those_of_this_machine(tmp_path: Path) -> None:
    found = roots(tmp_path)
    assert found[tmp_path.resolve()] is Owner.SCENARIO
    installed = {owner: folder for folder, owner in found.items()}
    assert (installed[Owner.NNSIGHT] / "__init__.py").is_file()
    assert (installed[Owner.HARNESS] / "worker" / "frames.py").is_file()
    assert (installed[Owner.PIPELINE] / "stage.py").is_file()


def test_an_environment_among_the_scenarios_is_no_scenario() -> None:
    """`--scenarios .` in a project that has its environment inside."""
    environment = Path(sysconfig.get_path("purelib"))
    found = roots(environment.parents[2], Path(sysconfig.get_path("stdlib")).parent)
    nnsight = next(folder for folder, owner in found.items() if owner is Owner.NNSIGHT)
    text = line(environment.parents[2] / "mine.py") + line(nnsight / "envoy.py")
    text += line(torch.__file__) + line(json.__file__)
    assert [frame.owner for frame in frames(text, found)] == [Owner.SCENARIO, Owner.NNSIGHT]


def test_what_any_folder_on_the_path_has_installed_is_no_scenario(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vendored" / "einops-1.0.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "vendored")])
    text = line(tmp_path / "vendored" / "einops.py") + line(tmp_path / "mine.py", 7)
    assert [frame.line for frame in frames(text, roots(tmp_path))] == [7]


def test_scenarios_that_are_installed_are_scenarios_unless_the_folder_is_a_package() -> None:
    folder = Path(sysconfig.get_path("purelib")) / "their_scenarios"
    [frame] = frames(line(folder / "theirs.py"), roots(folder))
    assert (frame.owner, frame.file) == (Owner.SCENARIO, "their_scenarios/theirs.py")
    nnsight = next(folder for folder, owner in roots().items() if owner is Owner.NNSIGHT)
    assert roots(nnsight, nnsight.parent)[nnsight] is Owner.NNSIGHT
    assert roots(nnsight.parent)[nnsight.parent] is None
