"""While engines run, nothing of theirs can be reached from another machine."""

from __future__ import annotations

import json
from collections.abc import Collection

import pytest

from conformance.runner.processes import sessions
from tests.end_to_end.conftest import SERVER, Ran

pytestmark = pytest.mark.engine


def require_local(places: Collection[str]) -> None:
    assert any(place.startswith("127.") for place in places), f"nothing was seen: {places}"
    assert [place for place in places if sessions.reached_from_outside(place)] == []


def test_nothing_listens_to_other_machines(llama: Ran) -> None:
    require_local(set().union(*llama.listening.values()))


def test_a_server_listens_to_no_other_machine(llama: Ran) -> None:
    served = llama.folder.group_folder("llama", f"{SERVER}+float32").path / "events.jsonl"
    events = map(json.loads, served.read_text().splitlines())
    [processes] = [event["processes"] for event in events if event["event"] == "probing"]
    require_local(set().union(*(llama.listening.get(pid, set()) for pid in processes)))
