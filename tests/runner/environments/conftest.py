from pathlib import Path

import pytest
from wheelhouse import add_wheel

from conformance.runner.environments import resolving, uv


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> Path:
    """A folder of wheels, which is all that uv finds."""
    folder = tmp_path / "wheels"
    for version in ("1.0", "2.0"):
        add_wheel(folder, "tiny", version, code=f"VERSION = {version!r}\n")
    add_wheel(folder, "needy", "1.0", needs=["tiny>=2"])
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    (tmp_path / "index").mkdir()
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "index").as_uri())
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setattr(resolving, "_LOCK", tmp_path / "lock.txt")
    (tmp_path / "lock.txt").write_text("tiny==1.0\n")
    uv.links.cache_clear()
    yield folder
    uv.links.cache_clear()


@pytest.fixture
def cache(tmp_path) -> Path:
    return tmp_path / "cache"
