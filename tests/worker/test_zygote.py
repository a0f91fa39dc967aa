"""How a zygote ends when its runner has."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from conformance.processes import sessions, temporary
from conformance.worker import zygote


def test_a_runs_folder_is_removed_though_the_runners_socket_closes_before_it_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"{temporary.PREFIX}ended"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(sessions, "kill_descendants", lambda pid: set())
    parents = iter([7, 7, 7])
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1))
    ours, its = socket.socketpair()
    with ours, its:
        zygote.ZygoteLoop(its, parent=7).end()
    assert not folder.exists()


def test_a_runs_folder_stays_while_the_runner_lives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / f"{temporary.PREFIX}runs"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(sessions, "kill_descendants", lambda pid: set())
    monkeypatch.setattr(zygote, "_PARENT_GONE_WITHIN", 0.0)
    ours, its = socket.socketpair()
    with ours, its:
        zygote.ZygoteLoop(its, parent=os.getppid()).end()
    assert folder.exists()
