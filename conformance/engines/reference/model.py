"""The `model` object of a scenario's reference: transformers with plain forward hooks."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers import LogitsProcessor

from conformance.engines.model_parts import parts_of
from conformance.engines.reference.at_once import Edit, recorded_steps, relative, rows_of
from conformance.engines.reference.branches import Branches, Step
from conformance.engines.reference.ensemble import REFERENCE_RUN, EnsembleMember
from conformance.engines.reference.expert_choice import (
    ExpertChoice,
    Routing,
    Tie,
    blocks,
    routed,
    routers,
)
from conformance.engines.reference.forwards import Forwards, other_forwards
from conformance.engines.reference.places import (
    INPUTS,
    OUTPUTS,
    PATTERN,
    Place,
    Seen,
    Visit,
    keeping_visits,
    visited,
)
from conformance.engines.reference.score_rules import eager, find_rules
from conformance.engines.score_rule import FIELDS
from conformance.engines.tree import exchanged, follow, hooked, reaches
from conformance.spec.direction import direction
from conformance.spec.generated_tokens import FLOAT32_WAY
from conformance.spec.programs.meaning import unit, without
from conformance.spec.records import Site


@dataclass(frozen=True)
class PromptRun:
    """The results for one prompt, one list entry per step. `stream[s][layer]` is [tokens, width],
    `logits[s]` [vocabulary], `tokens[s]` int64 [1], `ids` int64 [tokens] the prompt's.
    `branches[s]` is what unedited reference runs record for the diagnosis, and `parts[s]` what was
    requested. `experts[s]`, in float32, are the experts of the tokens by layer, and `ties[s]`, only
    in the reference, the tokens whose experts depend on rounding. `at_once` says that one forward
    computed all steps.
    """

    stream: list[dict[int, Tensor]] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)
    branches: list[Step] = field(default_factory=list)
    parts: list[Seen] = field(default_factory=list)
    ids: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.int64))
    experts: list[dict[int, ExpertChoice]] = field(default_factory=list)
    ties: list[dict[int, Tensor]] = field(default_factory=list)
    at_once: bool = False

    def after(self, layer: int) -> list[dict[int, Tensor]]:
        return [
            {index: value for index, value in streams.items() if index >= layer}
            for streams in self.stream
        ]

    def gave(self, site: Site, value: Tensor) -> bool:
        """Return whether an observation is a stream or the logits of this run."""
        if site.step >= len(self.logits):
            return False
        own: Tensor | None = self.logits[site.step]
        if site.name != "logits" or site.layer is not None:
            own = self.stream[site.step].get(-1 if site.layer is None else site.layer)
        return own is not None and torch.equal(own.cpu(), value)  # observations are on the CPU

    def goes_on(self, forced: Sequence[int], steps: int) -> bool:
        """Return whether this run starts with these steps: forced tokens first, then greedy ones.
        False for a prompt alone if the run was computed at once: edited runs must start with the
        exact bits that the prompt gives alone.
        """
        if steps > len(self.tokens) or (self.at_once and steps == 1):
            return False
        greedy = (int(logits.argmax()) for logits in self.logits[len(forced) : steps])
        return [int(token) for token in self.tokens[:steps]] == [*forced[:steps], *greedy]

    def first(self, steps: int) -> PromptRun:
        """Return the first `steps` steps of this run."""
        if steps == len(self.tokens):
            return self
        lists: dict[str, Any] = {k: v for k, v in vars(self).items() if isinstance(v, list)}
        return replace(self, **{name: held[:steps] for name, held in lists.items()})


@dataclass(frozen=True)
class RunEdits:
    """The changes of an intervention in a run: by layer, by place, and the ids chosen at certain
    steps.
    """

    edits: Mapping[int, Edit] = field(default_factory=dict)
    router_inputs: Mapping[int, Tensor] = field(default_factory=dict)
    at: Mapping[Place, Visit] = field(default_factory=dict)
    chosen: Mapping[int, int] = field(default_factory=dict)

    @property
    def any(self) -> bool:
        return bool(self.edits) or self.elsewhere

    @property
    def elsewhere(self) -> bool:
        """Whether anything other than the stream after a layer is changed."""
        return any((self.router_inputs, self.at, self.chosen))


class Forced(LogitsProcessor):  # type: ignore[misc]
    """Forces a generation to given tokens, by step; other steps are free."""

    def __init__(self, tokens: Mapping[int, int], prompt: int) -> None:
        self.tokens = tokens
        self.prompt = prompt

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.prompt
        if step not in self.tokens:
            return scores
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self.tokens[step]] = 0
        return forced


#: The prompt's ids, the ids that follow, and the number of the case's edited run (0: none).
Generation = tuple[tuple[int, ...], tuple[int, ...], int]


class ReferenceModel:
    """The `model` object of a scenario's reference: the reference or one baseline run, which is
    held to the runs of its `reference`. Its members are documented in
    `conformance.spec.authoring.Reference`.

    Baseline runs may compute the steps of a generation at once if the logits of a float32 one were
    then within the relative distance `allowed` of the reference's.

    If it runs each prompt `anew`, nothing is reused between calls of `run`: the ties of the call
    with this number (from 0) are decided the other way.
    """

    def __init__(
        self,
        module: Any,
        tokenizer: Any,
        member: EnsembleMember,
        layers: str,
        norms: tuple[float, ...],
        reference: ReferenceModel | None = None,
        anew: Mapping[int, Collection[Tie]] | None = None,
        allowed: float = 0.0,
    ) -> None:
        self.module = module
        self.anew = anew
        #: The runs of the current case, one for each call, if they are made anew.
        self.runs: list[PromptRun] = []
        self.reference = reference
        self.allowed = allowed
        #: Whether the steps of a generation may be computed at once, as far as that was tried.
        self.agrees: dict[Generation, bool] = {}
        self.tokenizer = tokenizer
        self.member = member
        self.modules = list(follow(module, layers))
        self.norms = norms
        self.forced: tuple[tuple[int, ...], ...] = ()
        self.prompts: tuple[str, ...] = ()
        self.branches: Branches | None = None
        self.layer_of = {
            router: index for index, layer in enumerate(self.modules) for router in routers(layer)
        }
        self.parts, self.arranged = parts_of(module, layers)
        #: The unedited runs, each with the prompt's ids followed by the names of the kept parts.
        self._unedited: list[tuple[tuple[Any, ...], PromptRun]] = []
        #: The forwards of `every_logits` in the current case.
        self.prefills: list[PromptRun] = []
        #: The edited runs of the current case.
        self.edited: list[PromptRun] = []
        # In bf16 ties are frequent; the judge allows for other experts there.
        self._choosing = blocks(self.modules) if member.dtype is torch.float32 else {}
        self._ids: dict[str, list[int]] = {}
        self._accepts = inspect.signature(module.forward).parameters
        # As in `generate`: with a large vocabulary, compute only the last token's logits.
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in self._accepts else {}

    @property
    def routed(self) -> list[int]:
        return sorted(self.layer_of.values())

    @cached_property
    def readable(self) -> tuple[str, ...]:
        """What `run(parts=…)` can keep of this model, except routers."""
        return tuple(
            name
            for name, part in {**OUTPUTS, **INPUTS}.items()
            if name != "router" and (not part or getattr(self.parts, part))
        )

    def having(self, part: str) -> list[int]:
        path = getattr(self.parts, part)
        return [at for at, layer in enumerate(self.modules) if path and reaches(layer, path)]

    def score_rules(self) -> dict[str, dict[int, Tensor]]:
        """Return the fields of the rules by which attentions score, each by layer; none if this is
        a baseline run.
        """
        having = self.having("qkv") if self.member == REFERENCE_RUN else []
        if not having:
            return {}
        rules = find_rules(self.module, self.modules, self.parts, having)
        return {
            site: {at: getattr(rule, name) for at, rule in rules.items()}
            for name, site in FIELDS.items()
        }

    def direction(self, layer: int, seed: int = 0) -> Tensor:
        """Return the same vector as `lm.direction` on the engines, in this member's dtype."""
        width: int = self.module.config.get_text_config().hidden_size
        vector = direction(width, self.norms[layer], seed)
        return vector.to(self.member.dtype).to(self.module.device)

    @torch.inference_mode()
    def run(
        self,
        prompt: str | Sequence[int],
        *,
        edits: Mapping[int, Edit] | None = None,
        given: Mapping[int, Tensor] | None = None,
        steps: int = 1,
        parts: Sequence[str] = (),
        held: Sequence[int] = (),
        at: Mapping[Place, Visit] | None = None,
        chosen: Mapping[int, int] | None = None,
    ) -> PromptRun:
        """Generate greedily from one prompt; `chosen` ids take precedence over `held` ones.

        A run without changes is cached, with all its prefixes. A single-step run that requests a
        part keeps all parts, since a scenario requests others next.
        """
        ids = tuple(self.tokenize(prompt) if isinstance(prompt, str) else prompt)
        forced = tuple(held) or self._forced(ids)
        changes = RunEdits(edits or {}, given or {}, at or {}, chosen or {})
        if self.anew is None and not changes.any:
            for (ids_run, *parts_run), known in self._unedited:
                if ids_run == ids and set(parts) <= set(parts_run) and known.goes_on(forced, steps):
                    return known.first(steps)
            if steps == 1 and parts and set(parts) <= set(self.readable):
                parts = self.readable
        run = None
        if self.anew is None and not changes.elsewhere and not parts:
            run = self._at_once(ids, forced, steps, changes.edits)
        run = run or self._generate(ids, changes, steps, forced, parts)
        if changes.any:
            self.edited.append(run)
        else:
            self._unedited.append(((ids, *parts), run))
        if self.anew is not None:
            self.runs.append(run)
        return run

    def forget_parts(self) -> None:
        """Drop the runs that kept parts, which are large."""
        self._unedited = [(of, run) for of, run in self._unedited if len(of) == 1]

    def project_out(self, rows: Tensor, direction: Tensor) -> Tensor:
        """Return the rows [tokens, width] without their component along a direction [width].

        Other float32 baseline runs compute in float64, except for the rounding of the direction.
        That rounding is all that remains of rows along the direction: no engine reproduces its
        bits, and if all runs computed alike it might happen to be zero.
        """
        along = unit(direction)
        if not self.member.name.startswith(FLOAT32_WAY):
            return without(rows, along)
        return without(rows.double(), along.double()).to(rows.dtype)

    def tokenize(self, prompt: str) -> list[int]:
        if prompt not in self._ids:
            self._ids[prompt] = list(self.tokenizer(prompt).input_ids)
        return self._ids[prompt]

    @torch.inference_mode()
    def lens(self, stream: Tensor) -> Tensor:
        head = follow(self.module, self.parts.head)
        with exchanged(self._forwards):
            normed = follow(self.module, self.parts.norm)(stream)
            return functional.linear(normed.to(head.weight.dtype), head.weight)

    @torch.inference_mode()
    def every_logits(self, prompt: str) -> Tensor:
        ids = torch.tensor([self.tokenize(prompt)], device=self.module.device)
        run = PromptRun(ids=ids[0])
        routing = self._routing(run, tuple(ids[0].tolist()), (), 1, edited=False)
        self.prefills.append(run)
        if self.anew is not None:
            self.runs.append(run)
        inputs, mask, rows = self._batch(ids)
        places = (mask.cumsum(-1) - 1).clamp_min(0)
        more = {"position_ids": places} if rows and "position_ids" in self._accepts else {}
        with routed(self.module, self._choosing, routing, rows), exchanged(self._forwards):
            output = self.module(input_ids=inputs, attention_mask=mask, use_cache=False, **more)
        logits: Tensor = output.logits[0, rows:]
        return logits

    @cached_property
    def _forwards(self) -> Forwards:
        """The forwards of the modules that this member computes differently."""
        return other_forwards(self.module, split=self.member.split, fused=self.member.fused)

    def unedited(self) -> list[PromptRun]:
        """Return the runs without edits of the current prompts."""
        present = {tuple(self.tokenize(prompt)) for prompt in self.prompts}
        return [run for (ids, *_), run in self._unedited if ids in present]

    def _generate(
        self,
        prompt: tuple[int, ...],
        changes: RunEdits,
        steps: int,
        forced: tuple[int, ...],
        parts: Sequence[str],
    ) -> PromptRun:
        ids = torch.tensor([prompt], device=self.module.device)
        inputs, mask, rows = self._batch(ids)
        run = PromptRun(ids=ids[0])
        choosing = {
            module: block
            for module, block in self._choosing.items()
            if block.layer not in changes.router_inputs
        }
        routing = self._routing(run, prompt, forced[: steps - 1], steps, edited=changes.any)
        kept = keeping_visits(self.modules, self.parts, parts, run.parts)
        recording = recorded_steps(
            self.module,
            self.modules,
            lambda count: [slice(rows if count > 1 else 0, count)],
            changes.edits,
            run.stream,
            run.logits,
        )
        with (
            routed(self.module, choosing, routing, rows),
            # Before the recording, so that the recorded values include these changes.
            visited(self.module, self.modules, self.parts, changes.at, rows),
            recording,
            self._routed_by(changes.router_inputs),
            eager(self.module) if PATTERN in parts else nullcontext(),
            visited(self.module, self.modules, self.parts, kept, rows),
            nullcontext()
            if self.branches is None or changes.any
            else self.branches.recorded(self.module, self.modules, run.branches),
            exchanged(self._forwards),
        ):
            tokens = {**dict(enumerate(forced)), **changes.chosen}
            if steps == 1 and not self.member.pad:
                # A prefill alone needs nothing of what `generate` prepares, which takes as long.
                arguments = {"input_ids": inputs, "attention_mask": mask, "use_cache": False}
                logits = self.module(**arguments, **self._last).logits[0, -1]
                token = tokens.get(0, int(logits.argmax()))
                run.tokens.append(torch.tensor([token], device=inputs.device))
                return run
            output = self.module.generate(
                input_ids=inputs,
                attention_mask=mask,
                max_new_tokens=steps,
                do_sample=False,
                logits_processor=[Forced(tokens, inputs.shape[1])] if tokens else [],
            )
        run.tokens.extend(output[0, inputs.shape[1] :].split(1))
        return run

    def _routing(
        self,
        run: PromptRun,
        prompt: tuple[int, ...],
        tokens: tuple[int, ...],
        steps: int,
        *,
        edited: bool,
    ) -> Routing:
        """Return what a run, which is filled, must choose: a baseline run takes the experts of the
        reference's run, so that a tie is decided alike.
        """
        number = len(self.runs)
        if self.reference is None:
            otherwise = (self.anew or {}).get(number, ())
            find = self.member.name == REFERENCE_RUN.name
            return Routing((), otherwise, find_ties=find, choices=run.experts, ties=run.ties)
        reference = self.reference
        if reference.anew is not None:
            held = reference.runs[number].experts if number < len(reference.runs) else []
        else:
            of = reference.along(prompt, tokens, steps, len(self.edited) + 1 if edited else 0)
            held = of.experts if of else reference.prefill(prompt)
        return Routing(held, choices=run.experts)

    def _at_once(
        self,
        prompt: tuple[int, ...],
        forced: tuple[int, ...],
        steps: int,
        edits: Mapping[int, Edit],
    ) -> PromptRun | None:
        """Run all steps in one forward, or return None if this member or the definition does not
        allow it. An edited run is compared with the reference's edited run of the same number.
        """
        tokens, held_to = forced[: steps - 1], self.reference
        if not self.member.at_once or held_to is None or steps == 1 or len(tokens) < steps - 1:
            return None
        number = len(self.edited) + 1 if edits else 0
        reference = held_to.along(prompt, tokens, steps, number)
        generation = (prompt, tokens, number)
        whole = self.member.dtype is torch.float32  # may try an untested generation
        if reference is None or not held_to.agrees.get(generation, whole):
            return None
        ids = torch.tensor([prompt + tokens], device=self.module.device)
        inputs, mask, before = self._batch(ids)
        rows = rows_of(len(prompt), steps, before)
        last = {"logits_to_keep": steps} if self._last else {}
        run = PromptRun(ids=ids[0, : len(prompt)], at_once=True)
        recording = recorded_steps(
            self.module, self.modules, lambda _: rows, edits, run.stream, run.logits
        )
        with recording, exchanged(self._forwards):
            if self.member.pad:  # `generate` computes the positions of padded rows
                last |= {"max_new_tokens": 1, "do_sample": False}
                self.module.generate(input_ids=inputs, attention_mask=mask, **last)
            else:
                self.module(input_ids=inputs, attention_mask=mask, use_cache=False, **last)
        if len(run.logits) < steps:  # this model's `generate` decides itself how many it keeps
            return None
        if whole:
            pairs = zip(run.logits, reference.logits, strict=True)
            far = max(relative(own, other) for own, other in pairs)
            held_to.agrees[generation] = far <= held_to.allowed
        if not held_to.agrees[generation]:
            return None
        free = (int(row.argmax()) for row in run.logits[len(forced[:steps]) :])
        for token in (*forced[:steps], *free):
            run.tokens.append(torch.tensor([token], device=inputs.device))
        return run

    def along(
        self, prompt: Sequence[int], tokens: Sequence[int], steps: int, number: int = 0
    ) -> PromptRun | None:
        """Return the first `steps` steps of a run of this prompt along these tokens, or None: an
        unedited run, or the edited run with this number (from 1) in the current case.
        """
        runs = self.edited[number - 1 : number] if number else [run for _, run in self._unedited]
        for run in runs:
            if run.ids.tolist() != list(prompt) or len(run.tokens) < steps:
                continue
            if [int(token) for token in run.tokens[: len(tokens)]] == list(tokens):
                return run.first(steps)
        return None

    def prefill(self, prompt: Sequence[int]) -> list[dict[int, ExpertChoice]]:
        """Return the experts of a prompt whose logits were all computed in the current case."""
        same = (run.experts for run in self.prefills if run.ids.tolist() == list(prompt))
        return next(same, [])

    def begin_case(self, prompts: tuple[str, ...]) -> None:
        """Start a case with these prompts."""
        self.agrees = {key: agree for key, agree in self.agrees.items() if not key[2]}
        self.prompts, self.edited, self.prefills, self.runs = prompts, [], [], []

    def _forced(self, ids: tuple[int, ...]) -> tuple[int, ...]:
        """Return the forced tokens after this prompt, if it is one of the case's prompts."""
        for prompt, tokens in zip(self.prompts, self.forced, strict=False):
            if tuple(self.tokenize(prompt)) == ids:
                return tokens
        return ()

    def _batch(self, ids: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return the inputs, the mask, and how many rows precede the prompt's own."""
        if not self.member.pad:
            return ids, torch.ones_like(ids), 0
        neighbour = ids[:, torch.arange(ids.shape[1] + self.member.pad) % ids.shape[1]].flip(1)
        padding = torch.full_like(ids[:, :1], self.module.generation_config.pad_token_id)
        padding = padding.expand(1, self.member.pad)
        mask = torch.cat([torch.zeros_like(padding), torch.ones_like(ids)], dim=1)
        inputs = torch.cat([torch.cat([padding, ids], dim=1), neighbour])
        return inputs, torch.cat([mask, torch.ones_like(neighbour)]), self.member.pad

    def _routed_by(self, inputs: Mapping[int, Tensor]) -> AbstractContextManager[None]:
        """Replace the input of these layers' routers, for every token."""

        def replacing(value: Tensor) -> Callable[..., Any]:
            return lambda router, args: (value.to(args[0].dtype).expand_as(args[0]), *args[1:])

        return hooked(
            router.register_forward_pre_hook(replacing(inputs[index]))
            for router, index in self.layer_of.items()
            if index in inputs
        )
