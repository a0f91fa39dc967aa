"""What is named as a file and is none is refused, and not waited for."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.errors import ConformanceError
from conformance.judge import expectations
from conformance.runner.environments import columns
from conformance.runner.planning import trust
from conformance.runner.store.files import read_record
from conformance.spec import loose_json
from conformance.spec.inputs import manifest, text_file, user_file
from conformance.spec.records import Thresholds
from conformance.spec.scenario import discover


@pytest.fixture(autouse=True)
def impatience() -> Iterator[None]:
    def late(*_: object) -> None:
        pytest.fail("it waits for ever")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(30)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe that nobody writes to."""
    os.mkfifo(tmp_path / "pipe.py")
    return tmp_path / "pipe.py"


READERS: tuple[Callable[[Path], Any], ...] = (
    text_file.read,
    loose_json.read,
    manifest.load,
    expectations.load,
    columns.load,
    user_file.read,
    lambda path: read_record(Thresholds, path),
    lambda path: trust.note(path.parent, trust.Executed(code=(path,))),
)


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_a_pipe_and_a_device_are_refused(
    pipe: Path, read: Callable[[Path], Any], kind: str
) -> None:
    path = pipe if kind == "pipe" else Path("/dev/zero")
    with pytest.raises(ConformanceError, match="no regular file") as caught:
        read(path)
    assert caught.value.path == path


@pytest.mark.parametrize("read", READERS)
def test_a_folder_is_said_to_be_one(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    with pytest.raises(ConformanceError, match="directory"):
        read(tmp_path)


def test_a_pipe_among_the_scenarios_is_refused(pipe: Path) -> None:
    with pytest.raises(ConformanceError, match="is no file"):
        discover(pipe.parent)


def test_a_kept_file_that_is_gone_is_named(tmp_path: Path) -> None:
    gone = tmp_path / "helpers.py"
    named = trust.Named(tmp_path / "models.yaml", tmp_path / "cache")
    with pytest.raises(ConformanceError, match="No such file") as caught:
        trust.require_known(trust.Executed(code=(gone,)), tmp_path, named)
    assert caught.value.path == gone
    assert "put the file back" in caught.value.remedy
