"""The engine that runs nnsight on transformers."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from nnsight import save
from nnsight.intervention.interleaver import Mediator
from nnsight.modeling.transformers import TransformersModel
from torch import Tensor

from conformance.engines import Refused, progress
from conformance.engines.building.adapters import adapter_of
from conformance.engines.lm import TracedModel, UntracedLogProbabilities
from conformance.engines.loading import attention, generate_greedily
from conformance.engines.model_parts import TracedLayer, parts_of
from conformance.engines.probing import beside
from conformance.engines.probing.probe_failure import probed, stop_at, tell_probing
from conformance.engines.probing.repeated import is_unchanged, repeats
from conformance.engines.probing.watching import Streams, watched
from conformance.engines.structure import map_tensors
from conformance.engines.traced import Probe, TracedLayers, observe, read_probe
from conformance.engines.tree import follow, hooked, layer_path
from conformance.spec.builtin.probe import PROBE
from conformance.spec.records import Case, Group, Job, Status
from conformance.spec.residual_stream import LAYOUTS
from conformance.spec.scenario import Scenario

#: transformers' error for an attention implementation that an architecture does not support.
NO_SUCH_ATTENTION = "does not support an attention implementation"


class Padding:
    """Count the padding rows of the current step for each prompt of a batch.

    transformers pads a batch on the left, and a scenario must see only its own tokens. The
    attention mask of the running forward says which rows are padding.
    """

    def __init__(self) -> None:
        self.mask: Tensor | None = None

    def watch(self, module: torch.nn.Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        """Save the attention mask; a forward pre-hook on the whole model."""
        self.mask = kwargs.get("attention_mask")

    def of_block(self, rows: int) -> int:
        """Return how many of this step's `rows` are padding before the running block's prompt."""
        if self.mask is None or rows == 1:
            return 0
        group = Mediator.current("the rows of a prompt").batch_group
        return rows - int(self.mask[group[0] if group else 0].sum())


PADDING = Padding()


def without_padding(rows: Tensor) -> Tensor:
    """Return the rows of the running block's prompt, without padding."""
    return rows[PADDING.of_block(len(rows)) :]


class PaddedLayer(TracedLayer):
    """A layer whose rows begin with padding, which reads leave out and writes preserve."""

    def own(self, value: Tensor) -> Tensor:
        return without_padding(value)

    @property
    def stream(self) -> Tensor:
        return without_padding(LAYOUTS[self.layout].read(self.envoy.output)).clone()

    @stream.setter
    def stream(self, value: Tensor) -> None:
        output = self.envoy.output
        rows = LAYOUTS[self.layout].read(output)
        whole = torch.cat([rows[: PADDING.of_block(len(rows))], value.to(rows.dtype)])
        self.envoy.output = LAYOUTS[self.layout].write(output, whole)


class NewTokens:
    """A streamer that skips the prompt and passes on the generated tokens, so that its n-th value
    is the n-th step's.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self.module = module
        self.prompt_seen = False

    def put(self, value: Tensor) -> None:
        if self.prompt_seen:
            self.module(value)
        self.prompt_seen = True

    def end(self) -> None:
        pass


class HFModel(TracedModel):
    """A scenario's `lm` on transformers; `conformance.spec.authoring.LM` documents it."""

    own = staticmethod(without_padding)

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
        if samples > 1:
            raise Refused("transformers gives one block the rows of all samples of a prompt")
        progress.trace_begins()
        how: dict[str, Any] = {"do_sample": False}
        if seed is not None:
            torch.manual_seed(seed)
            how = {"do_sample": True, "temperature": temperature, "top_k": top_k, "top_p": top_p}
            how |= {"num_return_sequences": draws}
        if extract:
            how |= {"output_hidden_states": True, "return_dict_in_generate": True}
        # `generate` outside of a with statement would run at once; `__wrapped__` is the plain
        # method, which the tracer calls.
        streamer = NewTokens(self.model.generator.streamer._module)
        generate = functools.partial(type(self.model).generate.__wrapped__, self.model)
        return self.model.trace(
            *prompt,
            fn=generate,
            streamer=streamer,
            max_new_tokens=steps,
            **how,
        )

    def asking(self, steps: int, stop: int | None = None) -> dict[str, Any]:
        raise Refused("transformers generates the same number of tokens for all prompts of a batch")

    @property
    def logits(self) -> Tensor:
        logits: Tensor = self.model.output.logits[0, -1].clone()
        return logits

    @logits.setter
    def logits(self, value: Tensor) -> None:
        self.model.output.logits[:, -1] = value

    @property
    def token(self) -> Tensor:
        ids: Tensor = self.model.generator.streamer.output.reshape(1).clone()
        return ids

    @property
    def draws(self) -> tuple[Tensor, Tensor]:
        logits = self.model.output.logits[:, -1].clone()
        ids: Tensor = self.model.generator.streamer.output.flatten().clone()
        return logits, ids

    def force(self, token: int) -> None:
        """Make the generation continue with this id. Read the logits before, if at all."""
        logits = self.model.output.logits
        logits[:, -1] = -torch.inf
        logits[:, -1, token] = 0

    def edit(self) -> Any:
        return self.model.edit(inplace=True)

    @staticmethod
    def generated(result: Tensor, steps: int) -> list[Tensor]:
        return [result.reshape(-1)[-back].reshape(1).clone() for back in range(steps, 0, -1)]

    def extracted(self, result: Any, prompt: str, layers: Sequence[int]) -> dict[int, Tensor]:
        """Return the stream [tokens, width] after each of these layers, as transformers itself
        returned it in the generation with this `tracer.result`.
        """
        first_step = result.hidden_states[0]
        last = len(first_step) - 2
        if last in layers:
            raise Refused("transformers' last hidden state has gone through the final norm")
        own = len(self.tokenize(prompt))  # the rows before these are padding
        return {layer: first_step[layer + 1].flatten(0, -2)[-own:].clone() for layer in layers}

    def generate(self, prompts: Sequence[str], steps: int) -> list[dict[str, list[Tensor]]]:
        """Return what transformers generates without a trace, one prompt at a time."""
        outputs = []
        for prompt in prompts:
            ids = self._ids(prompt)
            generated, tokens = self._generated(ids, steps, do_sample=False)
            logits = [torch.log_softmax(scores[0].float(), dim=-1) for scores in generated.logits]
            outputs.append({"logits": logits, "tokens": tokens})
        return outputs

    def _ids(self, prompt: str | Sequence[int]) -> Tensor:
        """Return a prompt's ids, int64 [1, tokens], on the model's device."""
        ids = self.tokenize(prompt) if isinstance(prompt, str) else list(prompt)
        return torch.tensor([ids], device=self.model._module.device)

    def _generated(self, ids: Tensor, steps: int, **how: Any) -> tuple[Any, list[Tensor]]:
        """Return transformers' output for a generation, and the new ids, int64 [1] per step."""
        output = self.model._module.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=steps,
            output_logits=True,
            return_dict_in_generate=True,
            **how,
        )
        return output, list(output.sequences[0, ids.shape[1] :].split(1))

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
        ids = self._ids(prompt)
        how: dict[str, Any] = {"do_sample": False}
        if seed is not None:
            torch.manual_seed(seed)
            how = {"do_sample": True, "temperature": temperature, "top_k": 0}
        logits: list[Tensor] = []
        watch = self.model._module.register_forward_hook(lambda *ran: logits.append(ran[-1].logits))
        with hooked([watch]):  # of the whole prompt, with all of its rows
            generated, chosen = self._generated(
                ids, steps, output_scores=True, logits_to_keep=0, **how
            )
        whole = logits[0][0, :-1]
        rows = [row[0] for row in (generated.scores if processed else generated.logits)]
        said = [torch.log_softmax(row.float(), dim=-1) for row in rows]
        return UntracedLogProbabilities(
            prompt=torch.log_softmax(whole.float(), dim=-1).gather(-1, ids[0, 1:, None]),
            chosen=[row[token] for row, token in zip(said, chosen, strict=True)],
            top=[row.topk(top).values for row in said],
            ids=chosen,
        )

    def computed(self, prompts: Sequence[str]) -> list[dict[str, Streams]]:
        """Return the stream after every layer without a trace, one prompt at a time."""
        module = self.model._module
        layers = dict(enumerate(follow(module, self.layers.path)))
        outputs = []
        for prompt in prompts:
            ids = self._ids(prompt)
            with watched(layers, self.layers.layout) as streams, torch.no_grad():
                module(input_ids=ids, attention_mask=torch.ones_like(ids))
            outputs.append({"stream": streams})
        return outputs


class HFEngine:
    """nnsight on transformers. A given `tokenizer` is not loaded again."""

    def __init__(self, job: Job, tokenizer: Any = None) -> None:
        self.job = job
        adapter = adapter_of(job.checkpoint)
        adapted = {} if adapter is None else {"peft": str(adapter)}
        self.model = TransformersModel(
            str(job.checkpoint),
            task="text-generation",
            tokenizer=tokenizer,
            dispatch=True,
            dtype=getattr(torch, job.precision.dtype),
            device="cuda" if torch.cuda.is_available() else "cpu",
            **(attention(job.checkpoint) | adapted | dict(job.backend.options)),
        )
        self.module = module = self.model._module
        module.register_forward_pre_hook(PADDING.watch, with_kwargs=True)
        generate_greedily(module, self.model.tokenizer)
        self.probe = read_probe(job.probe) if job.probe else Probe((), ())
        count = module.config.get_text_config().num_hidden_layers
        self.path = layer_path(module, count)
        self.fresh: list[Any] = []
        tell_probing(job)
        self.settled, self.obstacle = probed(
            lambda: self._first_outputs(count), self.probe, job.model.layout
        )
        parts, _ = parts_of(module, self.path)
        layers = TracedLayers(self.model, self.path, count, self.settled.layout, PaddedLayer, parts)
        self.lm = HFModel(self.model, layers, self.probe, job.precision)
        asked = not self.obstacle and module.device.type != "cpu"
        self.repeats = asked and repeats(lambda: self._outputs(count))
        whole = not (self.obstacle or job.settings)
        self.kept_beside = whole and beside.kept_beside(
            functools.partial(beside.in_one_trace, self.lm)
        )

    def _outputs(self, count: int) -> list[Any]:
        """Return every layer's raw output on the probe prompt."""
        layers = TracedLayers(self.model, self.path, count, "", PaddedLayer)
        outputs: Any
        with self.model.trace(PROBE):
            outputs = [layers[index].envoy.output for index in range(count)]
            outputs = save(outputs)
        return list(outputs)

    def _first_outputs(self, count: int) -> list[Any]:
        outputs = self._outputs(count)
        self.fresh = map_tensors(outputs, torch.Tensor.clone)
        return outputs

    def unchanged(self) -> bool:
        if self.obstacle:
            return True  # no trace runs
        exact = self.module.device.type == "cpu" or self.repeats
        return is_unchanged(self._outputs(len(self.fresh)), self.fresh, exact=exact)

    def group(self) -> Group:
        device = next(self.model._module.parameters()).device.type
        return Group(
            model=self.job.model.id,
            backend=self.job.column.id,
            status=self.obstacle.status if self.obstacle else Status.OK,
            reason=self.settled.reason,
            layout=self.settled.layout,
            layout_tried=self.settled.tried,
            identity={
                "engine": "hf",
                "device": device,
                "repeats": self.repeats,
                "kept_beside": self.kept_beside,
                "dtype": str(self.model._module.dtype),
                # Read from the module: nnsight's model has this name only since 0.8.1.
                "attention": self.model._module.config._attn_implementation,
                "layer_list": self.path,
                "pipeline_size": 1,
            },
        )

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Tensor]:
        stop_at(self.obstacle, scenario)
        return observe(self.lm, scenario, case)

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.model.tokenizer(prompt).input_ids) for prompt in case.prompts)

    def close(self) -> None:
        pass


def open_engine(job: Job) -> HFEngine:
    """Load the engine. Raises Refused if transformers lacks the configured attention."""
    try:
        return HFEngine(job)
    except ValueError as error:
        lines = (line.strip() for line in str(error).splitlines())
        words = next((line for line in lines if NO_SUCH_ATTENTION in line), "")
        raise Refused(words) if words else error from error
