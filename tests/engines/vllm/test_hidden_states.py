"""What an engine hands out by itself: asked for, waited for, and read, without an engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conformance.engines import Refused
from conformance.engines.hf import HFModel
from conformance.engines.vllm import hidden_states


class Stepping:
    """An engine in this process that has so many steps left to do."""

    def __init__(self, left: int) -> None:
        self.left = left
        scheduler = SimpleNamespace(has_requests=lambda: self.left > 0)
        self.engine_core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))

    def step(self) -> None:
        self.left -= 1


class Connector(SimpleNamespace):
    """vLLM's module, as far as a file is read by it: only once the engine has come to an end."""

    def __init__(self, engine: Stepping | None, states: torch.Tensor) -> None:
        self.engine, self.states = engine, states

    def load_hidden_states(self, path: str) -> dict[str, torch.Tensor]:
        assert self.engine is None or not self.engine.left, "the file is not there yet"
        return {"hidden_states": self.states}


@pytest.mark.parametrize("left", [0, 2, None])
def test_an_engine_of_this_process_is_run_to_its_end_before_its_file_is_read(left, monkeypatch):
    engine = None if left is None else Stepping(left)
    states = torch.randn(5, 4, 8)
    connector = Connector(engine, states)
    monkeypatch.setattr(hidden_states, "_theirs", lambda: connector)
    output = SimpleNamespace(kv_transfer_params={"hidden_states_path": "there"})
    found = hidden_states.given(SimpleNamespace(llm_engine=engine), output, [1, 3])
    assert sorted(found) == [1, 3]
    assert torch.equal(found[3], states[:, 3])


def test_a_vllm_without_extraction_refuses_in_words(monkeypatch):
    monkeypatch.setattr(hidden_states, "_PACKAGE", "conformance.no_such_module")
    with pytest.raises(Refused, match="extracts no hidden states: No module named"):
        hidden_states.asked(Path("folder"), 4)


def test_every_layer_is_asked_for_by_what_comes_after_it(monkeypatch):
    monkeypatch.setattr(hidden_states, "_theirs", lambda: None)
    asked = hidden_states.asked(Path("folder"), 4)
    draft = asked["speculative_config"]["draft_model_config"]["hf_config"]
    assert draft["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3, 4]
    transfer = asked["kv_transfer_config"]
    assert transfer["kv_connector_extra_config"]["shared_storage_path"] == "folder"
    assert ("kv_connector_module_path" in transfer) is not torch.cuda.is_available()


def hf(tokens: int) -> HFModel:
    """`lm` as far as a result is read by it, whose prompts are all of so many tokens."""
    lm = object.__new__(HFModel)
    lm.tokenize = lambda prompt: list(range(tokens))  # type: ignore[method-assign]
    return lm


def test_transformers_states_begin_before_the_first_layer_and_padding_is_cut_off():
    states = tuple(torch.randn(1, 7, 8) for _ in range(5))
    result = SimpleNamespace(hidden_states=(states, "a later step's"))
    found = hf(5).extracted(result, "prompt", range(3))
    assert sorted(found) == [0, 1, 2]
    assert torch.equal(found[0], states[1][0, 2:])
    assert torch.equal(found[2], states[3][0, 2:])


def test_transformers_last_state_is_not_the_stream():
    result = SimpleNamespace(hidden_states=(tuple(torch.randn(1, 7, 8) for _ in range(5)),))
    with pytest.raises(Refused, match="final norm"):
        hf(7).extracted(result, "prompt", [3])
