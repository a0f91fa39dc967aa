"""The digest of an environment follows its files, whatever their versions say."""

from __future__ import annotations

import os
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.runner.scheduling.planned import Launch
from conformance.runner.scheduling.reuse import keys_of
from conformance.runner.store.keys import deciding_variables, files_installed_in
from conformance.spec.checkpoints import cache_folder
from tests.faulty_run import job

LONG_AGO = 1_000_000_000
LARGE = b"x" * (2 << 20)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with a library of one source file and one large one."""
    root = tmp_path_factory.mktemp("environment")
    venv.create(root, with_pip=False, symlinks=True)
    site = next(root.glob("lib/python*/site-packages"))
    told = site / "library-1.0.dist-info"
    told.mkdir()
    (site / "library").mkdir()
    (site / "library" / "code.py").write_text("SIZE = 1\n")
    (site / "library" / "kernel.so").write_bytes(LARGE)
    (told / "METADATA").write_text("Metadata-Version: 2.1\nName: library\nVersion: 1.0\n")
    rows = [
        f"library/code.py,sha256=a,9\nlibrary/kernel.so,sha256=b,{len(LARGE)}",
        "library-1.0.dist-info/METADATA,sha256=c,1\nlibrary-1.0.dist-info/RECORD,,",
    ]
    (told / "RECORD").write_text("\n".join(rows) + "\n")
    for path in site.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))
    return root / "bin" / "python"


@pytest.fixture
def digest(python: Path, tmp_path: Path) -> Callable[[], str]:
    def computed() -> str:
        files_installed_in.cache_clear()
        return files_installed_in(python, tmp_path / "stamps")

    return computed


def file(python: Path, name: str) -> Path:
    return next(python.parents[1].glob(f"lib/python*/site-packages/{name}"))


def test_an_edit_changes_it_and_its_end_changes_it_back(
    python: Path, digest: Callable[[], str]
) -> None:
    code = file(python, "library/code.py")
    before = digest()
    assert digest() == before
    code.write_text("SIZE = 2\n")  # as long as it was
    assert digest() != before
    code.write_text("SIZE = 1\n")
    assert digest() == before


def test_a_kernel_counts_by_its_record_until_it_is_changed(
    python: Path, digest: Callable[[], str]
) -> None:
    kernel, record = (file(python, n) for n in ("library/kernel.so", "library-1.0*/RECORD"))
    before, text = digest(), record.read_text()
    record.write_text(text.replace("sha256=b", "sha256=d"))
    os.utime(record, (LONG_AGO, LONG_AGO))
    os.utime(kernel, (LONG_AGO - 1, LONG_AGO - 1))
    other = digest()
    assert other != before
    kernel.write_bytes(LARGE[:-1] + b"y")
    assert digest() not in {before, other}


@pytest.mark.parametrize("name", ["library/new.py", "patched.pth", "sitecustomize.py"])
def test_what_is_put_beside_it_counts(python: Path, digest: Callable[[], str], name: str) -> None:
    before = digest()
    path = file(python, "library").parent / name
    path.write_text("")
    assert digest() != before
    path.unlink()
    assert digest() == before


def test_so_does_what_the_path_puts_before_it(
    digest: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = digest()
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    (shadow / "library.py").write_text("SIZE = 1\n")
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    first = digest()
    (shadow / "library.py").write_text("SIZE = 3\n")
    assert len({before, first, digest()}) == 3


def test_a_changed_library_of_the_same_version_is_another_key(
    python: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    (tmp_path / "plain.py").write_text("")
    plain = job("healthy", tmp_path, cases=("all",), scenarios=tmp_path)

    def key(**env: str) -> str:
        files_installed_in.cache_clear()
        launch = Launch(python, "", tuple(env.items()))
        return keys_of(plain, launch, "cpu")["plain.all"]

    before = key()
    assert key() == before and key(OTHER="1") != before
    code = file(python, "library/code.py")
    code.write_text("SIZE = 4\n")
    assert key() != before
    code.write_text("SIZE = 1\n")
    assert key() == before
    monkeypatch.setenv("TORCH_LOGS", "all")
    assert key() != before
    assert cache_folder() == tmp_path / "cache"


def test_this_interpreter_is_asked_without_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("subprocess.run", None)
    files_installed_in.cache_clear()
    first = files_installed_in(Path(sys.executable), tmp_path)
    files_installed_in.cache_clear()
    assert files_installed_in(Path(sys.executable), tmp_path) == first


def test_where_files_are_kept_decides_nothing() -> None:
    told = {"TORCH_HOME": "/a", "HF_TOKEN": "b", "HF_HUB_OFFLINE": "1", "HOME": "/c"}
    assert deciding_variables(told | {"LD_PRELOAD": "d.so"}) == {"LD_PRELOAD": "d.so"}
