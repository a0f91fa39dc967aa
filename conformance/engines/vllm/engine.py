"""The engine that runs nnsight on vLLM, eager: on CUDA if available, else on the CPU."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import torch
from nnsight import save
from torch import Tensor
from transformers import AutoConfig

from conformance.engines import Refused, progress
from conformance.engines.inside_attention import counts
from conformance.engines.lm import TracedModel, UntracedLogProbabilities
from conformance.engines.model_parts import Parts, TracedLayer, find_parts
from conformance.engines.probing import beside
from conformance.engines.probing.probe_failure import probed, stop_at, tell_probing
from conformance.engines.probing.repeated import is_unchanged, repeats
from conformance.engines.probing.watching import Streams
from conformance.engines.refusals import refused
from conformance.engines.structure import map_tensors
from conformance.engines.traced import Probe, TracedLayers, observe, read_probe
from conformance.engines.tree import layer_path
from conformance.engines.vllm import client, hidden_states, patches, requests, without_nnsight
from conformance.engines.vllm.hook_canary import proven
from conformance.engines.vllm.inside.worker_rpc import unpacked
from conformance.engines.vllm.patches import PatchPlace
from conformance.engines.vllm.relay import relay_needed
from conformance.engines.vllm.sampled import (
    make_logprob_parameters,
    make_untraced_parameters,
    own_logprobs,
    parse_output,
)
from conformance.spec import loose_json
from conformance.spec.builtin.probe import PROBE
from conformance.spec.inputs import usable
from conformance.spec.records import Case, Group, Job, Precision, Status
from conformance.spec.scenario import Scenario

#: The longest prompt and generation of any scenario, in tokens.
MAX_LENGTH = 256

#: The most requests in a step.
AT_ONCE = 8

#: The share of GPU memory that must be free at start. vLLM reserves no share, since the cache size
#: is given, but its default of 0.92 would fail on a GPU shared by several engines.
MEMORY_SHARE = 0.05


class VLLMModel(TracedModel):
    """The `lm` object of a scenario on vLLM. It is sent to the engine's processes with a block."""

    def trace(
        self,
        *prompt: Any,
        steps: int = 1,
        seed: int | None = None,
        extract: bool = False,
        samples: int = 1,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int = 0,
        draws: int = 1,
    ) -> Any:
        """Return nnsight's tracer of a generation of `steps` tokens: greedy or, with a seed,
        sampled. What the engine extracts was configured when it was opened.
        """
        progress.trace_begins()
        how: dict[str, Any] = {"temperature": 0.0}
        if seed is not None:
            how = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "seed": seed}
        if max(samples, draws) > 1:
            how["n"] = max(samples, draws)
        return self.model.trace(*prompt, max_tokens=steps, ignore_eos=True, **how, **self.way())

    def asking(self, steps: int, stop: int | None = None) -> dict[str, Any]:
        ends = {} if stop is None else {"stop_token_ids": [stop]}
        return {"max_tokens": steps, "temperature": 0.0, "ignore_eos": True, **ends}

    def aborting(self, index: int, after: int) -> AbstractContextManager[None]:
        return requests.aborting(self.model.vllm_entrypoint.llm_engine, index, after)

    def way(self) -> dict[str, Any]:
        """Return nnsight's keywords for sending a trace to the engine and returning its values."""
        return {}

    def rpc(self, method: str, *args: Any) -> list[Any]:
        """Call this worker method in every process of the engine, and return the results."""
        answers: list[Any] = self.model.vllm_entrypoint.llm_engine.collective_rpc(method, args=args)
        return answers

    def submit(self, prompts: Sequence[str | Sequence[int]], asked: Any) -> list[Any]:
        """Return vLLM's outputs for prompts without a block, all in one batch."""
        with requests.trace_scope():
            outputs = self.model.vllm_entrypoint.generate(
                list(prompts), asked, use_tqdm=False, **requests.name_adapter()
            )
        return list(outputs)

    @property
    def logits(self) -> Tensor:
        """The logits [vocabulary] of the last token in this step."""
        logits: Tensor = self.model.logits[-1].clone()
        return logits

    @logits.setter
    def logits(self, value: Tensor) -> None:
        logits = self.model.logits.clone()
        logits[-1] = value
        self.model.logits = logits

    @property
    def token(self) -> Tensor:
        """The id sampled in this step, int64 [1]."""
        ids: Tensor = self.model.samples.reshape(1).to(torch.int64, copy=True)
        return ids

    @property
    def draws(self) -> tuple[Tensor, Tensor]:
        """The logits [1, vocabulary] and id, int64 [1], of one draw: each draw runs the block."""
        return self.logits[None], self.token

    def force(self, token: int) -> None:
        """Make the generation continue with this id."""
        self.model.samples = torch.full_like(self.model.samples, token)

    def edit(self) -> Any:
        """Return nnsight's tracer of a block that runs in every later request."""
        return self.model.edit()

    @staticmethod
    def generated(result: Any, steps: int) -> list[Tensor]:
        """Return the generated ids in `tracer.result`, int64 [1] for each step."""
        return [torch.tensor([token]) for token in result.outputs[0].token_ids[:steps]]

    def extracted(self, result: Any, prompt: str, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the stream [tokens, width] after each of these layers, as the engine itself
        returned it in the request with this `tracer.result`.
        """
        return hidden_states.given(self.model.vllm_entrypoint, result, layers)

    def generate(self, prompts: Sequence[str], steps: int) -> list[dict[str, list[Tensor]]]:
        """Return what vLLM generates without a trace, all prompts in one batch."""
        outputs = self.submit(prompts, make_untraced_parameters(steps))
        return [parse_output(one.outputs[0]) for one in outputs]

    def log_probabilities(
        self,
        prompt: str | Sequence[int],
        *,
        steps: int,
        top: int,
        temperature: float = 0.0,
        seed: int | None = None,
        processed: bool = False,
    ) -> UntracedLogProbabilities:
        """Return vLLM's own log-probabilities of a prompt and its continuation. Whether they are
        taken after temperature was configured when the engine was opened.
        """
        asked = make_logprob_parameters(steps, top, temperature, seed)
        [output] = self.submit([prompt], asked)
        return own_logprobs(output, top)

    def computed(self, prompts: Sequence[str]) -> list[dict[str, Streams]]:
        """Return the stream after every layer without a trace, one prompt at a time."""
        found: list[dict[str, Streams]] = []
        for prompt in prompts:
            self.rpc("conformance_watch", self.layers.path, self.layers.layout)
            self.generate([prompt], 1)
            stages = map(unpacked, self.rpc("conformance_watched"))
            streams = {at: rows for stage in stages for at, rows in stage.items()}
            found.append({"stream": streams})
        return found


def load(job: Job, mode: str) -> Any:
    """Load nnsight's VLLM in one of its modes. Raises Refused with vLLM's message."""
    backend = job.backend
    patches.apply(PatchPlace.CLIENT)
    if mode == "async":
        patches.apply(PatchPlace.STREAMING)
    relay = relay_needed(backend.pipeline, backend.transport)
    patches.apply(PatchPlace.ENGINE, worker=client.worker_class(relay=relay))
    arguments: dict[str, Any] = {}
    try:
        usual = {
            "dtype": job.precision.dtype,
            "pipeline_parallel_size": backend.pipeline,
            "tensor_parallel_size": backend.tensor,
            "gpu_memory_utilization": MEMORY_SHARE,
            "max_num_seqs": AT_ONCE,
            "async_scheduling": False,
            "max_logprobs": -1,
        }
        kind, adapted = requests.model_class(job.checkpoint)
        arguments = usual | room_for(job) | asked_for(job) | adapted | dict(backend.options)
        return kind(str(job.checkpoint), dispatch=True, mode=mode, **arguments)
    except Exception as error:
        known: Exception | None = refused(error)
        if known is None:  # vLLM by itself is asked on one rank
            alone = arguments | {"pipeline_parallel_size": 1, "tensor_parallel_size": 1}
            known = without_nnsight.own_error(error, str(job.checkpoint), alone)
        raise known or error from error


def room_for(job: Job) -> dict[str, int]:
    """Return the context length and cache size for cases that configure none. vLLM does not start
    if the cache cannot hold one longest prompt, and preempts requests that do not fit.
    """
    config = usable.of_text(loose_json.mapping(job.checkpoint / "config.json"))
    tokens = AT_ONCE * int(job.settings.get("length", MAX_LENGTH))
    cache = max(client.KV_CACHE_BYTES, tokens * usable.bytes_of_a_token(config))
    return {"max_model_len": MAX_LENGTH, "kv_cache_memory_bytes": cache}


def asked_for(job: Job) -> dict[str, Any]:
    """Return vLLM's arguments for what a scenario configures of the engine."""
    settings = job.settings
    words = {
        "prefix_cache": "enable_prefix_caching",
        "step_tokens": "max_num_batched_tokens",
        "blocks": "num_gpu_blocks_override",
        "block_tokens": "block_size",
        "length": "max_model_len",
        "cache_bytes": "kv_cache_memory_bytes",
    }
    arguments = {words[name]: value for name, value in settings.items() if name in words}
    if "step_tokens" in settings:
        arguments["enable_chunked_prefill"] = True
    if "logprobs" in settings:
        arguments["logprobs_mode"] = f"{settings['logprobs']}_logprobs"
    if settings.get("extraction"):
        config = AutoConfig.from_pretrained(job.checkpoint).get_text_config()
        arguments |= hidden_states.asked(hidden_states.place(job), config.num_hidden_layers)
    return arguments


class VLLMEngine:
    """The engine on vLLM's `LLM`; other front ends derive from it."""

    kind: type[VLLMModel] = VLLMModel
    #: nnsight's mode of the engine.
    mode = "sync"
    #: Reads the streams of several prompts at once.
    at_once = staticmethod(beside.in_one_trace)

    def __init__(self, job: Job) -> None:
        self.job = job
        self.model: Any = self.load()
        self.path = ""
        self.probe = read_probe(job.probe) if job.probe else Probe((), ())
        self.ranks = self._traced(0).rpc("conformance_identity")
        computing = [rank.pop("pid") for rank in self.ranks]  # differs in each load
        count = int(self.ranks[0]["total_layers"])
        self.path = layer_path(self.model._module, count)
        self.fresh: list[Any] = []
        tell_probing(job, computing)
        self.settled, self.obstacle = probed(
            lambda: self._first_outputs(count), self.probe, job.model.layout, refused
        )
        heads, groups = counts(AutoConfig.from_pretrained(job.checkpoint).get_text_config())
        parts = find_parts(
            self.model._module,
            self.path,
            int(self.ranks[0]["vocabulary"]),
            heads=heads,
            groups=groups,
            arranged=self.probe.arranged,
            ranks=job.backend.tensor,
        )
        self.lm = self._traced(count, self.settled.layout, parts)
        on_cpu = self.ranks[0]["device"] == "cpu"
        invariant = self.ranks[0]["batch_invariant"]
        # In another process, timing decides which requests share a batch.
        here = client.core_here(self.model.vllm_entrypoint) is not None
        # On a CPU, results are the same in batches of any size.
        asked = (here or invariant) and not (self.obstacle or on_cpu)
        self.repeats = asked and repeats(lambda: self._outputs(count))
        self.exact = on_cpu or self.repeats
        # The settings of a case may leave too little memory.
        measured = self.exact and not (self.obstacle or job.settings)
        self.kept_beside = (self.repeats and invariant) or (
            measured and beside.kept_beside(partial(type(self).at_once, self.lm))
        )
        self.hooks = 0

    def load(self) -> Any:
        """Return nnsight's model with an engine behind it."""
        return load(self.job, self.mode)

    def front(self) -> str:
        """Return the name of the front end that takes the requests."""
        return type(self.model.vllm_entrypoint).__name__

    def _traced(self, count: int, layout: str = "", parts: Parts | None = None) -> VLLMModel:
        layers = TracedLayers(self.model, self.path, count, layout, TracedLayer, parts)
        return self.kind(self.model, layers, self.probe, self.job.precision)

    def _outputs(self, count: int) -> list[Any]:
        """Return every layer's raw output on the probe prompt."""
        outputs: Any
        lm = self._traced(count)
        layers = lm.layers
        with lm.trace(PROBE):
            # Copies: their buffers are overwritten later.
            outputs = [map_tensors(layers[at].envoy.output, Tensor.clone) for at in range(count)]
            outputs = save(outputs)
        return list(outputs)

    def _first_outputs(self, count: int) -> list[Any]:
        self.fresh = self._outputs(count)
        return self.fresh

    def unchanged(self) -> bool:
        """Return whether the engine computes the same on the probe prompt as when it was loaded.

        Returns True untested if no trace runs or if the prompt may be in the prefix cache.
        """
        if self.obstacle or self.ranks[0]["prefix_caching"]:
            return True
        self.lm.rpc("conformance_begin")  # replaces nan that a block left in the caches
        return is_unchanged(self._outputs(len(self.fresh)), self.fresh, exact=self.exact)

    def group(self) -> Group:
        # Report only values that are equal on every rank; others would misrepresent the engine.
        common = {
            key: value
            for key, value in self.ranks[0].items()
            if all(rank[key] == value for rank in self.ranks)
        }
        return Group(
            model=self.job.model.id,
            backend=self.job.column.id,
            status=self.obstacle.status if self.obstacle else Status.OK,
            reason=self.settled.reason,
            layout=self.settled.layout,
            layout_tried=self.settled.tried,
            identity={
                "engine": "vllm",
                "front": self.front(),
                "layer_list": self.path,
                **common,
                "repeats": self.repeats,
                "kept_beside": self.kept_beside,
                "ranks": len(self.ranks),
                "stages": [rank["layers"] for rank in self.ranks if rank["tensor_rank"] == 0],
            },
        )

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Tensor]:
        # An engine that refuses float32 cannot compute in it without nnsight either.
        error = self.obstacle.error if self.obstacle else None
        if isinstance(error, Refused) and self.job.precision is Precision.FLOAT32:
            raise error
        stop_at(self.obstacle, scenario)
        try:
            return self.with_hooks(lambda: observe(self.lm, scenario, case))
        except Exception as error:
            raise refused(error) or error from error

    def with_hooks(self, run: Callable[[], dict[str, Tensor]]) -> dict[str, Tensor]:
        """Return what `run` observes. Raises HooksSkippedError if the engine bypassed the hooks."""
        self.lm.rpc("conformance_begin")
        observed = run()
        self.hooks = proven(self.lm.rpc("conformance_hooks"))
        return observed

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.model.tokenizer(prompt).input_ids) for prompt in case.prompts)

    def close(self) -> None:
        client.close(self.model)
        shutil.rmtree(hidden_states.place(self.job), ignore_errors=True)


def open_engine(job: Job) -> VLLMEngine:
    client.prepare()
    return VLLMEngine(job)
