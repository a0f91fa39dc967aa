"""What a zygote imports ahead, and where that would leave it unable to fork."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conformance import engines


@pytest.mark.parametrize(
    ("shown", "build", "driver", "ahead"),
    [
        (False, None, False, True),
        (False, None, True, True),
        (False, "12.9", False, True),
        (False, "12.9", True, False),
        (True, "12.9", True, False),
    ],
)
def test_nothing_is_imported_ahead_where_a_driver_would_start_a_thread(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    *,
    shown: bool,
    build: str | None,
    driver: bool,
    ahead: bool,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: shown)
    monkeypatch.setattr(torch.version, "cuda", build)
    monkeypatch.setattr(engines, "DRIVER", tmp_path if driver else tmp_path / "none")
    assert bool(engines.preload("hf")) is ahead
