"""What an engine hands out by itself: asked for, waited for, and read, without an engine."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from conformance.engines import Refused
from conformance.engines.hf import HFModel
from conformance.engines.vllm import hidden_states


class Stepping(SimpleNamespace):
    """An engine in this process that has so many steps left to do."""

    def __init__(self, left: int) -> None:
        scheduler = SimpleNamespace(has_requests=lambda: self.left > 0)
        core = SimpleNamespace(engine_core=SimpleNamespace(scheduler=scheduler))
        super().__init__(left=left, engine_core=core)

    def step(self) -> None:
        self.left -= 1


@pytest.mark.parametrize("left", [0, 2, None])
def test_an_engine_of_this_process_is_run_to_its_end_before_its_file_is_read(left, monkeypatch):
    engine = None if left is None else Stepping(left)
    states = torch.randn(5, 4, 8)

    def load_hidden_states(path):
        assert engine is None or not engine.left, "the file is not there yet"
        return {"hidden_states": states}

    connector = SimpleNamespace(load_hidden_states=load_hidden_states)
    monkeypatch.setattr(hidden_states, "_import_connector", lambda: connector)
    output = SimpleNamespace(kv_transfer_params={"hidden_states_path": "there"})
    found = hidden_states.given(SimpleNamespace(llm_engine=engine), output, [1, 3])
    assert sorted(found) == [1, 3]
    assert torch.equal(found[3], states[:, 3])


def test_a_vllm_without_extraction_refuses_in_words(monkeypatch):
    monkeypatch.setattr(hidden_states, "_PACKAGE", "conformance.no_such_module")
    with pytest.raises(Refused, match="extracts no hidden states: No module named"):
        hidden_states.asked(Path("folder"), 4)


def test_every_layer_is_asked_for_by_what_comes_after_it():
    asked = hidden_states.asked(Path("folder"), 4)
    draft = asked["speculative_config"]["draft_model_config"]["hf_config"]
    assert draft["eagle_aux_hidden_state_layer_ids"] == [1, 2, 3, 4]
    transfer = asked["kv_transfer_config"]
    assert transfer["kv_connector_extra_config"]["shared_storage_path"] == "folder"
    assert ("kv_connector_module_path" in transfer) is not torch.cuda.is_available()


def test_transformers_states_begin_before_the_first_layer_and_padding_is_cut_off():
    lm = object.__new__(HFModel)
    lm.tokenize = lambda prompt: list(range(5))  # type: ignore[method-assign]
    states = tuple(torch.randn(1, 7, 8) for _ in range(5))
    result = SimpleNamespace(hidden_states=(states, "a later step's"))
    found = lm.extracted(result, "prompt", range(3))
    assert sorted(found) == [0, 1, 2]
    assert torch.equal(found[0], states[1][0, 2:])
    assert torch.equal(found[2], states[3][0, 2:])
    with pytest.raises(Refused, match="final norm"):  # the last is not the stream
        lm.extracted(result, "prompt", [3])
