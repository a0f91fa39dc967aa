"""How a zygote ends when its runner has."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from conformance.processes import sessions, temporary
from conformance.worker import zygote


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder of a run whose zygote has no workers."""
    folder = tmp_path / f"{temporary.PREFIX}run"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(sessions, "kill_descendants", lambda pid: set())
    return folder


def end(parent: int) -> None:
    ours, its = socket.socketpair()
    with ours, its:
        zygote.ZygoteLoop(its, parent).end()


def test_a_runs_folder_is_removed_though_the_runners_socket_closes_before_it_has_ended(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parents = iter([7, 7, 7])
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    end(parent=7)
    assert not folder.exists()


def test_a_runs_folder_stays_while_the_runner_lives(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zygote, "_PARENT_GONE_WITHIN", 0.0)
    end(parent=os.getppid())
    assert folder.exists()
