"""vllm-lens: a vLLM plug-in that runs a function before or after a layer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor

from conformance.engines import Refused
from conformance.engines.libraries.adapter import Ends, LibraryEngine, Place, PromptBatch
from conformance.engines.vllm.sampled import make_untraced_parameters, parse_output
from conformance.spec.programs import ModelPart
from conformance.spec.records import Job

#: Part → whether its hook runs before the layer.
_BEFORE = {ModelPart.INPUT: True, ModelPart.STREAM: False}

#: Running batches by number. A hook is pickled on its way to the engine, which is in this process,
#: and finds its batch by the number.
_RUNNING: dict[int, PromptBatch] = {}
_numbers = count()


class Lens:
    def __init__(self, job: Job) -> None:
        # Keep the engine in this process: the hooks use this process's objects.
        os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        from vllm import LLM

        self.llm = LLM(
            str(job.checkpoint),
            dtype=job.precision.dtype,
            kv_cache_memory_bytes=1 << 28,
            gpu_memory_utilization=0.3,
            max_num_seqs=8,
            enforce_eager=True,
            enable_prefix_caching=False,
            async_scheduling=False,
            max_logprobs=-1,
            logprobs_mode="raw_logits",
        )
        config = self.llm.llm_engine.model_config
        self.dtype = str(config.dtype)
        self.layers = int(config.hf_text_config.num_hidden_layers)
        [self.model] = self.llm.apply_model(_class_of)
        # The first request makes vLLM import modules that change this process.
        first = PromptBatch(["a"], [{(ModelPart.STREAM, 0): lambda step, rows: rows}], 2)
        first.lengths = [1]
        self.run(first)

    def identity(self) -> dict[str, str]:
        prompts = "one request each, in one batch"
        return {"dtype": self.dtype, "model": self.model, "prompts": prompts}

    def tokenize(self, prompt: str) -> list[int]:
        return [int(token) for token in self.llm.get_tokenizer()(prompt).input_ids]

    def run(self, batch: PromptBatch) -> list[Ends]:
        """Run all prompts in one call, each with its own hooks."""
        with _register(batch) as numbered:
            each = [_make_parameters(number, prompt, batch.steps) for number, prompt in numbered]
            outputs = self.llm.generate(batch.prompts, each, use_tqdm=False)
        return [Ends(**parse_output(output.outputs[0])) for output in outputs]


@contextmanager
def _register(batch: PromptBatch) -> Iterator[list[tuple[int, PromptBatch]]]:
    numbered = [(next(_numbers), prompt) for _, prompt in batch.each()]
    _RUNNING.update(numbered)
    try:
        yield numbered
    finally:
        for number, _ in numbered:
            del _RUNNING[number]


def _make_parameters(number: int, prompt: PromptBatch, steps: int) -> Any:
    """Return sampling parameters with a hook for each place of a batch with one prompt."""
    from vllm_lens import Hook

    hooks = []
    for place in prompt.places:
        part, layer = place
        if part not in _BEFORE or layer is None:
            raise Refused(f"vllm-lens hooks only whole layers, not {part}")
        act = partial(_act, number, place)
        hooks.append(Hook(fn=act, layer_indices=[layer], pre=_BEFORE[ModelPart(part)]))
    return make_untraced_parameters(steps, extra_args={"apply_hooks": hooks} if hooks else None)


def _class_of(model: torch.nn.Module) -> str:
    return type(model).__name__


def _act(number: int, place: Place, context: Any, rows: Tensor) -> Tensor | None:
    changed = _RUNNING[number].pass_by(place, rows[None])
    return None if changed is None else changed[0]


def open_engine(job: Job) -> LibraryEngine:
    return LibraryEngine(job, Lens(job))
