"""Whose a frame is, is decided by where the packages lie, and by no word in a path."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.records import Owner
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


def test_a_frame_is_named_from_its_package_on() -> None:
    [frame] = frames(line(PACKAGES / "vllm" / "v1" / "core.py", 12), ROOTS)
    assert (frame.file, frame.line) == ("vllm/v1/core.py", 12)


def test_the_cause_comes_after_what_was_raised_from_it() -> None:
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
