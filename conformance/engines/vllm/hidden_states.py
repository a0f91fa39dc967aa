"""vLLM's own extraction of hidden states: its configuration, and reading its files.

A speculative method that speculates nothing passes the states after the chosen layers to a
connector, which writes one file per request when the request ends.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conformance.engines import Refused
from conformance.engines.vllm.client import core_here
from conformance.engines.vllm.requests import trace_scope
from conformance.spec.records import Job

_PACKAGE = "vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector"


def place(job: Job) -> Path:
    """Return the folder of this job's extracted states, which exists until its engine is closed."""
    return job.folder / "extracted"


def asked(folder: Path, layers: int) -> dict[str, Any]:
    """Return vLLM's arguments that extract the states after each of `layers` layers into `folder`.

    Raises Refused if the installed vLLM cannot extract hidden states.
    """
    _import_connector()
    draft = {"hf_config": {"eagle_aux_hidden_state_layer_ids": list(range(1, layers + 1))}}
    transfer: dict[str, Any] = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(folder)},
    }
    if not torch.cuda.is_available():
        transfer["kv_connector"] = "WritingConnector"
        transfer["kv_connector_module_path"] = f"{__package__}.inside.kv_connector"
    return {
        "speculative_config": {
            "method": "extract_hidden_states",
            "num_speculative_tokens": 1,
            "draft_model_config": draft,
        },
        "kv_transfer_config": transfer,
    }


def given(entrypoint: Any, output: Any, layers: Sequence[int]) -> dict[int, Tensor]:
    """Return the prompt's states [tokens, width] after each of these layers, for this output."""
    core = core_here(entrypoint)
    with trace_scope():
        # A request's file is written in the step after its last one, and an engine in this process
        # only runs when called.
        while core is not None and core.scheduler.has_requests():
            entrypoint.llm_engine.step()
    path = output.kv_transfer_params["hidden_states_path"]
    states = _import_connector().load_hidden_states(path)["hidden_states"]
    return {layer: states[:, layer].clone() for layer in layers}


def _import_connector() -> Any:
    try:
        return importlib.import_module(_PACKAGE)
    except ModuleNotFoundError as error:
        raise Refused(f"this vLLM extracts no hidden states: {error}") from error
