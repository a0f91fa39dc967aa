"""Where the core of a checked engine is."""

from __future__ import annotations

import os

from conformance.engines.user_trace import vllm
from conformance.records import Backend, Column, Job, Model


def test_on_a_gpu_it_is_in_the_process_that_asks(monkeypatch, tmp_path):
    """An engine's processes are asked functions, which vLLM refuses to take to a core elsewhere."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setattr(
        vllm, "CheckedVLLM", lambda *_: os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"]
    )
    job = Job(
        "", Model("llama", "llama", ()), Column(Backend("vllm-pp1", "vllm")), *[tmp_path] * 3, ()
    )
    assert vllm.open_engine(job) == "0"
