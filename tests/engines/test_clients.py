"""Several clients at once: what opens the server goes with each, and errors are not taken for
answers.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from conformance.engines.lm import TracedModel

serve_engine = pytest.importorskip("conformance.engines.vllm.serve_engine")


class Answered(TracedModel):
    """A model whose traces have been answered already."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def answers(self) -> list[Any]:
        return self._answers


def test_the_first_error_of_a_client_is_raised_as_it_was() -> None:
    refused = ConnectionError("403")
    with pytest.raises(ConnectionError, match="403"):
        Answered({"saved": 1}, refused).received()
    assert Answered({"saved": 1}, refused).received(errors=True) == [{"saved": 1}, refused]
    assert Answered({"saved": 1}).received() == [{"saved": 1}]


def test_a_client_of_its_own_has_what_opens_the_server(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[Any] = []
    model = object.__new__(serve_engine.ServedModel)
    model.model = SimpleNamespace(trace=lambda prompt, backend, **asked: sent.append(backend))
    monkeypatch.setattr(serve_engine.ServedModel, "url", "http://127.0.0.1:1")
    monkeypatch.setattr(serve_engine.ServedModel, "secret", "the secret")
    monkeypatch.setattr(serve_engine.ServedModel, "asking", lambda *_: {})
    model.send("Hello")
    [backend] = sent
    assert (backend.host, backend.api_key) == ("http://127.0.0.1:1", "the secret")
