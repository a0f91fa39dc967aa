"""While engines run, nothing of theirs can be reached from another machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.processes import sessions
from tests.end_to_end.conftest import Ran, conformance

pytestmark = pytest.mark.engine


def require_local(ran: Ran) -> None:
    assert ran.code == 0, ran.output
    assert any(place.startswith("127.") for place in ran.listening), ran.listening
    outside = [place for place in ran.listening if sessions.reached_from_outside(place)]
    assert outside == []


def test_nothing_listens_to_other_machines(llama: Ran) -> None:
    require_local(llama)


def test_a_server_listens_to_no_other_machine(tmp_path: Path) -> None:
    cells = ("-m", "llama", "-b", "vllm-serve", "-k", "clean and alone", "--precision", "float32")
    require_local(conformance(tmp_path, "run", *cells, watch=True))
