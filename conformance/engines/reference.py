"""Plain PyTorch: what a scenario means, in float32 and in several honest bf16 ways.

transformers and forward hooks, no nnsight. One observation file per case holds the
truth and every ensemble member, keyed `member|site`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn import Module
from transformers import AutoModelForCausalLM, AutoTokenizer, LogitsProcessor

from conformance.checkpoints import SEAL
from conformance.continuations import continuation
from conformance.direction import direction
from conformance.engines.fused import fused
from conformance.engines.traced import flatten_runs
from conformance.engines.tree import follow, layer_path
from conformance.records import Case, Group, Job
from conformance.scenario import PROBE, Scenario

#: Changes the stream after one layer: (stream [tokens, width], the streams of this step
#: so far by layer) → the new stream.
Edit = Callable[[Tensor, Mapping[int, Tensor]], Tensor]

#: float32 computed in two ways must agree to this, or the truth is rejected.
AGREEMENT = 1e-5


@dataclass(frozen=True)
class Member:
    """One way to compute the reference. `pad` rows of padding go in front of the prompt,
    in a batch with a longer one; `split` adds the branches' last projections up in halves,
    as two tensor-parallel ranks do; `fused` rounds norms, activations and gates once.
    """

    name: str
    dtype: torch.dtype
    attention: str
    pad: int = 0
    split: bool = False
    fused: bool = False


TRUTH = Member("truth", torch.float32, "eager")
#: transformers' own roundings and those of fused kernels weigh alike: where SmolLM2's
#: massive activation arises (layer 9) the two are further from each other than from the truth.
#: In order of their attention, because switching it walks the whole model.
ENSEMBLE = (
    Member("eager", torch.bfloat16, "eager"),
    Member("split", torch.bfloat16, "eager", split=True),
    Member("sdpa", torch.bfloat16, "sdpa"),
    Member("padded", torch.bfloat16, "sdpa", pad=5),
    Member("fused", torch.bfloat16, "sdpa", fused=True),
    Member("fused_split", torch.bfloat16, "sdpa", split=True, fused=True),
)

#: For a model without sdpa attention, and for one that caps its attention scores: there
#: transformers' sdpa leaves the cap out without a word (Gemma-2), and is not honest.
EAGER_ENSEMBLE = tuple(
    replace(member, attention="eager") for member in ENSEMBLE if member.name != "sdpa"
)


@dataclass(frozen=True)
class Run:
    """What one prompt gave: a list entry per step. `stream[s][layer]` is [tokens, width],
    `logits[s]` is [vocabulary], `tokens[s]` is int64 [1].
    """

    stream: list[dict[int, Tensor]] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)

    def after(self, layer: int) -> list[dict[int, Tensor]]:
        """The streams after this layer and all later ones, per step."""
        return [
            {index: value for index, value in streams.items() if index >= layer}
            for streams in self.stream
        ]


class Forced(LogitsProcessor):  # type: ignore[misc]
    """Hold a generation to given tokens; it goes on freely after the last of them."""

    def __init__(self, tokens: tuple[int, ...], prompt: int) -> None:
        self.tokens = tokens
        self.prompt = prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.prompt
        if step >= len(self.tokens):
            return scores
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self.tokens[step]] = 0
        return forced


class ReferenceModel:
    """`model` of a scenario's reference: one member of the ensemble."""

    def __init__(
        self, module: Module, tokenizer: Any, member: Member, layers: str, norms: tuple[float, ...]
    ) -> None:
        self.module = module
        self.tokenizer = tokenizer
        self.member = member
        self.modules = list(follow(module, layers))
        self.norms = norms
        self.forced: tuple[tuple[int, ...], ...] = ()
        self.prompts: tuple[str, ...] = ()
        self._unedited: dict[tuple[str, int, tuple[int, ...]], Run] = {}

    def direction(self, layer: int, seed: int = 0) -> Tensor:
        """The vector that `lm.direction` gives on the engines, in this member's dtype."""
        width: int = self.module.config.get_text_config().hidden_size
        vector = direction(width, self.norms[layer], seed)
        return vector.to(self.member.dtype).to(self.module.device)

    @torch.inference_mode()
    def run(
        self, prompt: str, *, edits: Mapping[int, Edit] | None = None, steps: int = 1
    ) -> Run:
        """Generate greedily from one prompt, changing the stream after the given layers.

        A run without edits is computed once: many scenarios ask for the same one.
        """
        forced = self._forced(prompt)
        if edits:
            return self._generate(prompt, edits, steps, forced)
        key = (prompt, steps, forced)
        if key not in self._unedited:
            self._unedited[key] = self._generate(prompt, {}, steps, forced)
        return self._unedited[key]

    def _generate(
        self, prompt: str, edits: Mapping[int, Edit], steps: int, forced: tuple[int, ...]
    ) -> Run:
        ids = torch.tensor([self.tokenizer(prompt).input_ids], device=self.module.device)
        inputs, mask, rows = self._batch(ids)
        run = Run()
        with ExitStack() as stack:
            stack.enter_context(self._recorded(run, edits, rows))
            if self.member.split:
                stack.enter_context(split_reductions(self.module))
            if self.member.fused:
                stack.enter_context(fused(self.module))
            output = self.module.generate(
                input_ids=inputs,
                attention_mask=mask,
                max_new_tokens=steps,
                do_sample=False,
                logits_processor=[Forced(forced, inputs.shape[1])] if forced else [],
            )
        run.tokens.extend(output[0, inputs.shape[1] :].split(1))
        return run

    def _forced(self, prompt: str) -> tuple[int, ...]:
        return self.forced[self.prompts.index(prompt)] if self.forced else ()

    def _batch(self, ids: Tensor) -> tuple[Tensor, Tensor, int]:
        """Inputs, mask and how many rows precede the prompt's own."""
        if not self.member.pad:
            return ids, torch.ones_like(ids), 0
        other = ids[:, torch.arange(ids.shape[1] + self.member.pad) % ids.shape[1]].flip(1)
        padding = torch.full_like(ids[:, :1], self.module.generation_config.pad_token_id)
        padding = padding.expand(1, self.member.pad)
        mask = torch.cat([torch.zeros_like(padding), torch.ones_like(ids)], dim=1)
        inputs = torch.cat([torch.cat([padding, ids], dim=1), other])
        return inputs, torch.cat([mask, torch.ones_like(other)]), self.member.pad

    @contextmanager
    def _recorded(
        self, run: Run, edits: Mapping[int, Edit], padding: int
    ) -> Iterator[None]:
        """Hooks that edit and keep the stream after every layer, and the logits."""

        def begin(module: Module, args: Any, kwargs: Any) -> None:
            run.stream.append({})

        def layer_hook(index: int) -> Callable[..., Any]:
            def hook(module: Module, args: Any, output: Any) -> Any:
                whole = output[0] if isinstance(output, tuple) else output
                first = padding if whole.shape[1] > 1 else 0
                stream = whole[0, first:]
                if index in edits:
                    stream = edits[index](stream, run.stream[-1])
                    rows = torch.cat([whole[0, :first], stream.to(whole.dtype)])
                    whole = torch.cat([rows[None], whole[1:]])
                    output = (whole, *output[1:]) if isinstance(output, tuple) else whole
                run.stream[-1][index] = stream.clone()
                return output

            return hook

        def end(module: Module, args: Any, output: Any) -> None:
            run.logits.append(output.logits[0, -1].clone())

        handles = [
            self.module.register_forward_pre_hook(begin, with_kwargs=True),
            self.module.register_forward_hook(end),
            *(
                layer.register_forward_hook(layer_hook(index))
                for index, layer in enumerate(self.modules)
            ),
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()


@contextmanager
def split_reductions(module: Module) -> Iterator[None]:
    """Compute every projection back to the model's width as the sum of two halves, each
    rounded to bf16: the order of addition that two tensor-parallel ranks have.
    """
    width = module.config.get_text_config().hidden_size
    handles = []

    def halves(layer: Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        value = args[0]
        weight = layer.weight if isinstance(layer, torch.nn.Linear) else layer.weight.T
        middle = weight.shape[1] // 2
        left = F.linear(value[..., :middle], weight[:, :middle])
        right = F.linear(value[..., middle:], weight[:, middle:])
        total = left + right
        bias = getattr(layer, "bias", None)
        return total if bias is None else total + bias

    for layer in module.modules():
        if type(layer).__name__ in {"Linear", "Conv1D"}:
            shape = layer.weight.shape
            out = shape[0] if isinstance(layer, torch.nn.Linear) else shape[1]
            if out == width:
                handles.append(layer.register_forward_hook(halves))
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def score_caps(module: Module) -> dict[Module, float]:
    """The attention modules that cap their scores, with the cap."""
    name = "attn_logit_softcapping"
    return {
        child: cap for child in module.modules() if (cap := getattr(child, name, None)) is not None
    }


@contextmanager
def uncapped(module: Module) -> Iterator[None]:
    """Without the soft cap of the attention scores, so that eager and sdpa can be compared."""
    caps = score_caps(module)
    for child in caps:
        child.attn_logit_softcapping = None
    try:
        yield
    finally:
        for child, cap in caps.items():
            child.attn_logit_softcapping = cap


class TruthRejected(Exception):
    """Two float32 computations disagree: nothing can be judged by them."""


class ReferenceEngine:
    """Every member, loaded once; two sets of weights (float32 and bf16) are shared."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tokenizer = AutoTokenizer.from_pretrained(job.checkpoint)
        self.modules = {
            dtype: load(job, dtype, self.tokenizer) for dtype in (torch.float32, torch.bfloat16)
        }
        module = self.modules[torch.float32]
        count = module.config.get_text_config().num_hidden_layers
        self.path = layer_path(module, count)
        sdpa = bool(getattr(module, "_supports_sdpa", False))
        self.ensemble = ENSEMBLE if sdpa and not score_caps(module) else EAGER_ENSEMBLE
        self.members: dict[Member, ReferenceModel] = {}
        self.norms: tuple[float, ...] = ()
        self.norms = tuple(
            float(rows.norm(dim=-1).median()) for rows in self._probe(TRUTH).stream[0].values()
        )
        other = replace(TRUTH, attention="sdpa") if sdpa else replace(TRUTH, pad=5)
        with uncapped(module):
            self.disagreement = relative(
                self._probe(other).logits[0], self._probe(TRUTH).logits[0]
            )
        if not self.disagreement <= AGREEMENT:
            raise TruthRejected(
                f"float32 computed in two ways ({TRUTH}, {other}) differs by {self.disagreement:.1e} "
                f"(allowed {AGREEMENT:.0e}): the truth of {job.model.id} cannot be trusted"
            )

    def _probe(self, member: Member) -> Run:
        return ReferenceModel(self._weights(member), self.tokenizer, member, self.path, ()).run(
            PROBE
        )

    def _weights(self, member: Member) -> Module:
        """The shared weights in the member's precision, with its attention switched on."""
        module = self.modules[member.dtype]
        if module.config._attn_implementation != member.attention:
            module.set_attn_implementation(member.attention)
        return module

    def member(self, member: Member) -> ReferenceModel:
        module = self._weights(member)
        if member not in self.members:
            self.members[member] = ReferenceModel(
                module, self.tokenizer, member, self.path, self.norms
            )
        return self.members[member]

    def group(self) -> Group:
        config = self.modules[torch.float32].config.get_text_config()
        return Group(
            model=self.job.model.id,
            backend=self.job.backend.id,
            identity={
                "engine": "reference",
                "device": self.modules[torch.float32].device.type,
                "digest": self.job.digest,
                "source": source_of(self.job.checkpoint),
                "layers": config.num_hidden_layers,
                "width": config.hidden_size,
                "layer_list": self.path,
                "members": [TRUTH.name, *(member.name for member in self.ensemble)],
                "float32_disagreement": self.disagreement,
            },
        )

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Tensor]:
        """Every member's observations. The ensemble is held to the truth's tokens, so that
        all of them are judged in one context. Of a forced case only the forced runs.
        """
        truth = self._member_run(TRUTH, scenario, case, case.forced)
        forced = case.forced or continuation(truth, len(case.prompts))
        found = {f"truth|{site}": value for site, value in truth.items()}
        for member in self.ensemble:
            values = self._member_run(member, scenario, case, forced)
            found |= {f"{member.name}|{site}": value for site, value in values.items()}
        return found

    def _member_run(
        self,
        member: Member,
        scenario: Scenario,
        case: Case,
        forced: Mapping[str, tuple[tuple[int, ...], ...]],
    ) -> dict[str, Tensor]:
        model = self.member(member)
        model.prompts = case.prompts

        def run(twin: Case) -> Any:
            name = ("edited" if twin.active else "clean") if scenario.twin(case) else ""
            model.forced = forced.get(name, ())
            return scenario.specification(model, twin)

        return flatten_runs(scenario, case, run, only=tuple(case.forced))

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.tokenizer(prompt).input_ids) for prompt in case.prompts)

    def close(self) -> None:
        pass


def load(job: Job, dtype: torch.dtype, tokenizer: Any) -> Module:
    """The checkpoint in one precision. Buffers stay as their definition computes them,
    constants that are rounded on purpose (an embedding scale) stay rounded.
    """
    module = AutoModelForCausalLM.from_pretrained(
        job.checkpoint,
        dtype=dtype,
        attn_implementation="eager",
    )
    module = module.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    for child in module.modules():
        scale = getattr(child, "embed_scale", None)
        if isinstance(scale, Tensor):
            child.embed_scale = scale.to(torch.bfloat16).to(scale.dtype)
    settings = module.generation_config
    settings.eos_token_id = None
    settings.do_sample = False
    settings.temperature = settings.top_p = settings.top_k = None
    settings.pad_token_id = tokenizer.pad_token_id or 0
    return module


def source_of(checkpoint: Path) -> str:
    """What the checkpoint was made from, in the words of its seal."""
    seal = checkpoint / SEAL
    return str(json.loads(seal.read_text())["source"]) if seal.is_file() else str(checkpoint)


def relative(value: Tensor, truth: Tensor) -> float:
    return float((value - truth).norm() / truth.norm().clamp_min(1e-30))


def open_engine(job: Job) -> ReferenceEngine:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return ReferenceEngine(job)
