"""interp-engine on vLLM: a request reads points, and its writes are declared as data."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor

from conformance.engines import Refused
from conformance.engines.libraries.adapter import Ends, LibraryEngine, Place, PromptBatch, named
from conformance.spec.programs import Acts, Do, ModelPart, Operation, Program, Tokens
from conformance.spec.records import Job

_POINTS = {
    ModelPart.EMBEDDING: "embeddings",
    ModelPart.INPUT: "resid_pre.{layer}",
    ModelPart.ATTENTION_INPUT: "attn_in.{layer}",
    ModelPart.ATTENTION: "attn_out.{layer}",
    ModelPart.MLP_INPUT: "mlp_in.{layer}",
    ModelPart.MLP: "mlp_out.{layer}",
    ModelPart.STREAM: "resid_post.{layer}",
    ModelPart.NORM: "final_norm",
}


class Write(NamedTuple):
    """A vector that a prompt writes at a place, at every step."""

    place: Place
    operation: Operation
    vector: Tensor


class VLLMInterpLibrary:
    #: The writes of each prompt of the next batch, as data; its visits only read rows after it.
    writes: Sequence[Sequence[Write]] = ()

    def __init__(self, job: Job) -> None:
        # Not at module level: this imports vLLM.
        from interp_engine import load_model

        self.kind = "vllm-static" if job.backend.options.get("static") else "vllm"
        self.dtype = job.precision.dtype
        self.model = load_model(
            str(job.checkpoint),
            backend=self.kind,
            dtype=self.dtype,
            gpu_memory_utilization=0.3,
            extra_vllm_kwargs={"kv_cache_memory_bytes": 1 << 28, "max_num_seqs": 8},
        )
        self.layers = int(self.model.n_layers)
        self.loop = asyncio.new_event_loop()  # the engine is tied to the loop that created it
        self._wait(self.model.warmup())

    def _wait(self, answer: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(answer)

    def identity(self) -> dict[str, str]:
        return {
            "dtype": f"torch.{self.dtype}",
            "backend": self.kind,
            "prompts": "one request each, at the same time",
        }

    def tokenize(self, prompt: str) -> list[int]:
        # Without this, it adds the tokenizer's begin token to every text.
        return [int(token) for token in self.model.to_tokens(prompt, prepend_bos=False)[0]]

    def run(self, batch: PromptBatch) -> list[Ends]:
        """Run all prompts at once, then show each visit the rows that it would have seen."""
        points = {place: named(_POINTS, place, "interp-engine") for place in batch.places}
        for point in points.values():
            if reason := self.model.refuses(point):
                raise Refused(reason)
        answers = self._wait(self._all(batch, list(points.values())))
        for (_, alone), (_, rows, _) in zip(batch.each(), answers, strict=True):
            _show(alone, {place: rows[point] for place, point in points.items()})
        return [
            Ends(list(logits), [torch.tensor([token]) for token in tokens])
            for tokens, _, logits in answers
        ]

    async def _all(self, batch: PromptBatch, points: Sequence[str]) -> list[Any]:
        each = zip(batch.prompts, self.writes, strict=True)
        return await asyncio.gather(
            *(self._one(text, writes, points, batch.steps) for text, writes in each)
        )

    async def _one(
        self, text: str, writes: Sequence[Write], points: Sequence[str], steps: int
    ) -> tuple[list[int], Mapping[str, Tensor], Tensor]:
        """Return a prompt's tokens, its points' rows, and the logits. The engine returns no logits,
        so they are decoded from the stream after the last layer.
        """
        ids = self.tokenize(text)
        last = f"resid_post.{self.layers - 1}"
        with self._steered(writes, len(ids)):
            output, captured = await self.model.capture_generation(
                ids, list(dict.fromkeys((*points, last))), max_tokens=steps
            )
        rows = {str(address): rows for address, rows in captured.items()}
        logits = await self.model.decode_residuals(rows[last][-steps:])
        return list(output.token_ids), rows, logits.float()

    def _steered(self, writes: Sequence[Write], length: int) -> Any:
        from interp_engine import steer
        from interp_engine.steer_specs import AblateSpec, AddSpec, SteeringSpec

        if not writes:
            return nullcontext()
        [tokens] = {write.operation.tokens for write in writes}
        apart = {Tokens.ALL: [], Tokens.FIRST: range(1, length), Tokens.LAST: range(length - 1)}
        specs = [
            SteeringSpec.at(
                named(_POINTS, place, "interp-engine"),
                AddSpec(vector, operation.amount) if operation.do is Do.ADD else AblateSpec(vector),
            )
            for place, operation, vector in writes
        ]
        return steer(self.model, specs, position_mask=list(apart[tokens]))

    def close(self) -> None:
        self._wait(self.model.shutdown())
        self.loop.close()


def _show(alone: PromptBatch, rows: Mapping[Place, Tensor]) -> None:
    """Show a prompt's rows to its visits, step by step as a forward would."""
    first = alone.lengths[0]
    for step in range(alone.steps):
        own = slice(0, first) if step == 0 else slice(first + step - 1, first + step)
        for place in alone.places:
            alone.pass_by(place, rows[place][None, own])


def _writes_of(act: Acts) -> list[Write]:
    """Return a prompt's writes as data. Raises Refused for what the library cannot express."""
    writes = []
    for place, members in act.by_place().items():
        seen = False
        for _, operation in members if act.active else ():
            if operation.do.writes:
                if seen:
                    raise Refused("interp-engine reads a place after what is written there")
                writes.append(Write(place, operation, _vector(act, operation)))
            seen = seen or operation.do.reads
    if len({write.operation.tokens for write in writes}) > 1:
        raise Refused("interp-engine has one mask of tokens for all that a request writes")
    return writes


def _vector(act: Acts, operation: Operation) -> Tensor:
    if operation.do not in (Do.ADD, Do.PROJECT):
        raise Refused(
            "interp-engine's vLLM engine adds vectors and takes directions out or scales them; "
            f"it has no word for this: {operation.do}"
        )
    if operation.step is not None and act.program.steps > 1:
        raise Refused("interp-engine's vLLM engine writes at every step")
    if operation.value is not None:
        raise Refused("interp-engine's vLLM engine writes no value that a run reads")
    return act.direction(operation.layer or 0, seed=operation.seed)


class VLLMInterpEngine(LibraryEngine):
    library: VLLMInterpLibrary

    def batch(self, program: Program, acts: Sequence[Acts]) -> PromptBatch:
        self.library.writes = [_writes_of(act) for act in acts]
        for act in acts:
            act.active = False  # the rows that its visits will see already contain the writes
        return super().batch(program, acts)

    def close(self) -> None:
        self.library.close()


def open_engine(job: Job) -> VLLMInterpEngine:
    return VLLMInterpEngine(job, VLLMInterpLibrary(job))
