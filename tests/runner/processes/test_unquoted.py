"""Interpreters and caches in folders with spaces are reached by paths without."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import cast

import pytest

from conformance.runner.processes import temporary, unquoted
from conformance.runner.scheduling import zygotes
from conformance.runner.scheduling.planned import Launch


@pytest.fixture(autouse=True)
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the links are made in."""
    monkeypatch.setattr(unquoted, "_PARENT", tmp_path)
    return tmp_path


def folder(place: Path, name: str = "a folder") -> Path:
    made = place / name
    made.mkdir()
    return made


def test_a_path_without_quotes_stays(tmp_path: Path) -> None:
    assert unquoted.name_without_quotes(tmp_path) == tmp_path


@pytest.mark.parametrize("name", ["a folder", "Jane's", "$HOME", "(1)"])
def test_a_path_with_quotes_is_reached_by_a_link(tmp_path: Path, name: str) -> None:
    quoted = folder(tmp_path, name)
    link = unquoted.name_without_quotes(quoted)
    assert shlex.quote(str(link)) == str(link)
    assert link.samefile(quoted)
    assert unquoted.name_without_quotes(quoted) == link, "compiled code would be lost"


def test_two_folders_have_two_links(tmp_path: Path) -> None:
    one, other = folder(tmp_path, "a 1"), folder(tmp_path, "a 2")
    assert unquoted.name_without_quotes(one) != unquoted.name_without_quotes(other)


def test_links_that_another_user_could_change_are_refused(tmp_path: Path) -> None:
    quoted = folder(tmp_path)
    unquoted.name_without_quotes(quoted).parent.chmod(0o777)
    with pytest.raises(PermissionError, match="remove it"):
        unquoted.name_without_quotes(quoted)


def test_compiled_code_is_kept_below_a_path_without_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_CACHE_DIR", raising=False)
    cache = folder(tmp_path)
    kept = temporary.environment(tmp_path, cache, "cpu")["TORCHINDUCTOR_CACHE_DIR"]
    assert " " not in kept
    assert cache in Path(kept).resolve().parents


def test_temporary_files_are_below_a_path_without_quotes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setattr(temporary, "_LONGEST", 1000)  # pytest's folder has a long path
    with temporary.folder() as path:
        assert " " not in str(path)
        assert [path.name] == [made.name for made in place.iterdir()]
    assert list(place.iterdir()) == []


def test_a_zygote_in_a_folder_with_a_space_finds_its_packages_by_a_path_without(
    tmp_path: Path,
) -> None:
    python = Path(sys.executable)
    environment = folder(tmp_path) / "environment"
    environment.symlink_to(python.parent.parent)
    launch = Launch(python=environment / python.parent.name / python.name)
    zygote = zygotes.start(launch, log=tmp_path / "log", mark="test", places={})
    try:
        command = cast("list[str]", zygote.process.args)
        words = "import importlib.util as u, sys; print(sys.prefix, u.find_spec('torch').origin)"
        found = subprocess.run(
            [command[0], "-c", words], capture_output=True, text=True, check=True
        ).stdout
    finally:
        zygote.end()
    assert len(found.split()) == 2, found
