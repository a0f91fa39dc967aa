"""The last step of vLLM's hidden state extraction on a CPU, imported by name."""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.example_hidden_states_connector import (
    ExampleHiddenStatesConnector,
    PendingSave,
    extract_from_kv_cache,
)


class Written:
    """Replaces the CUDA event of a pending copy; always done."""

    def query(self) -> bool:
        return True


class WritingConnector(ExampleHiddenStatesConnector):  # type: ignore[misc]
    """vLLM's connector without CUDA streams and pinned memory: it writes each file at once. vLLM
    still chooses the states, the tokens, the time and the path.
    """

    def _submit_async_write(self, pending: PendingSave) -> None:
        if not self._is_tp_rank_zero:
            return
        first = torch.tensor(pending.block_ids)[:, None] * self._block_size
        slots = (first + torch.arange(self._block_size)).flatten()
        states = extract_from_kv_cache(self._kv_cache, slots, len(pending.token_ids))
        Path(pending.filename).parent.mkdir(parents=True, exist_ok=True)
        tensors = {"hidden_states": states.contiguous(), "token_ids": pending.token_ids}
        save_file(tensors, pending.filename)
        self._req_copy_events[pending.req_id] = Written()
        lock = self._lock_fds.pop(pending.req_id, None)
        if lock is not None:
            os.close(lock)  # readers that wait for the file may continue
