"""While engines run, nothing of theirs can be reached from another machine."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

import pytest

from conformance.processes import sessions
from tests.end_to_end.conftest import Ran, conformance

pytestmark = pytest.mark.engine


def require_local(places: Collection[str]) -> None:
    assert any(place.startswith("127.") for place in places), f"nothing was seen: {places}"
    assert [place for place in places if sessions.reached_from_outside(place)] == []


def test_nothing_listens_to_other_machines(llama: Ran) -> None:
    require_local(llama.listening)


def test_a_server_listens_to_no_other_machine(tmp_path: Path) -> None:
    cells = ("-m", "llama", "-b", "vllm-serve", "-k", "clean and alone", "--precision", "float32")
    ran = conformance(tmp_path, "run", *cells, watch=True)
    assert ran.code == 0, ran.output
    require_local(ran.listening)
