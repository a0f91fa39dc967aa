"""The reference engine: transformers' modelling code with forward hooks, without nnsight.

It computes the float32 reference, float32 baseline runs and several bf16 baseline runs. One
observation file per case holds them all, keyed `member|site` (the reference as `truth`), and under
`aux` additional values for the diagnosis.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from conformance.engines.building.adapters import adapter_of
from conformance.engines.loading import generate_greedily
from conformance.engines.model_parts import require_layers
from conformance.engines.probing.repeated import is_unchanged
from conformance.engines.reference.at_once import relative
from conformance.engines.reference.branches import collect_branch_values, find
from conformance.engines.reference.candidates_experts import Decisions, along_experts
from conformance.engines.reference.definitions import definitions
from conformance.engines.reference.ensemble import (
    CAP,
    REFERENCE_RUN,
    EnsembleMember,
    has_sdpa,
    members,
    score_caps,
)
from conformance.engines.reference.expert_choice import routers
from conformance.engines.reference.model import PromptRun, ReferenceModel
from conformance.engines.traced import flatten_runs
from conformance.engines.tree import exchanged, layer_path
from conformance.runner.store import GroupFolder, event_log
from conformance.spec import loose_json
from conformance.spec.builtin.one_layer import ONE_LAYER
from conformance.spec.builtin.probe import PROBE, PROBING
from conformance.spec.checkpoints import SEAL
from conformance.spec.generated_tokens import continuation, in_precision
from conformance.spec.records import DEFINITION, TIED, Case, Group, Job, Precision, Site
from conformance.spec.residual_stream import ROUNDING
from conformance.spec.scenario import Scenario

#: Two float32 computations may differ by this factor times the bf16 error of the same model, scaled
#: down by 2¹⁶: the rounding is that much finer, and a model magnifies both alike. The same factor
#: applies to an engine in float32.
AGREEMENT = 100.0
FINER = 2.0**-16


class ReferenceRejected(Exception):
    """Two float32 computations disagree, so nothing can be judged by them."""


class ReferenceEngine:
    """The reference and all baseline runs, which share two sets of weights (float32 and bf16)."""

    def __init__(self, job: Job) -> None:
        self.job = job
        self.tokenizer = AutoTokenizer.from_pretrained(job.checkpoint)
        self.modules = {
            dtype: load(job, dtype, self.tokenizer) for dtype in (torch.float32, torch.bfloat16)
        }
        module = self.modules[torch.float32]
        count = module.config.get_text_config().num_hidden_layers
        self.path = layer_path(module, count)
        self.ensemble = members(sdpa=has_sdpa(module))
        self.precisions = sorted(job.expect.get("precisions", Precision))
        self.members: dict[EnsembleMember, ReferenceModel] = {}
        self.scenario = ""
        reference = self._probe(REFERENCE_RUN)
        self.norms = tuple(
            float(rows.norm(dim=-1).median()) for rows in reference.stream[0].values()
        )
        #: The relative distance that two float32 computations may have.
        self.allowed = self._allowed(reference)
        self.disagreement = self._disagreement()
        self.fresh = self._logits()

    def _allowed(self, reference: PromptRun) -> float:
        """Return the allowed distance between two float32 computations of the probe."""
        bf16 = self._probe(replace(REFERENCE_RUN, dtype=torch.bfloat16)).logits[0].float()
        return AGREEMENT * FINER * max(relative(bf16, reference.logits[0]), ROUNDING)

    def _disagreement(self) -> float:
        """Return the largest distance between the baseline runs in float32, where rounding explains
        little. A baseline run that computes something else would hide every fault.
        """
        distances = {}
        module = self.modules[torch.float32]
        # Without the soft cap of the attention scores, eager and sdpa can be compared.
        with exchanged(dict.fromkeys(score_caps(module)), CAP):
            reference = self._probe(REFERENCE_RUN)
            for member in members(sdpa=has_sdpa(module)):
                logits = self._probe(replace(member, dtype=torch.float32)).logits[0]
                distances[member.name] = relative(logits, reference.logits[0])
            allowed = self._allowed(reference)
        for name, distance in distances.items():
            if not distance <= allowed:
                raise ReferenceRejected(
                    f"float32 computed in two ways ({REFERENCE_RUN.name}, {name}) differs by "
                    f"{distance:.1e} (allowed {allowed:.1e}): "
                    f"the reference of {self.job.model.id} cannot be trusted"
                )
        return max(distances.values())

    def _probe(self, member: EnsembleMember) -> PromptRun:
        return ReferenceModel(self._weights(member), self.tokenizer, member, self.path, ()).run(
            PROBE
        )

    def _logits(self) -> list[Tensor]:
        """Return the logits of the probe prompt in both precisions."""
        return [
            self._probe(replace(REFERENCE_RUN, dtype=dtype)).logits[0] for dtype in self.modules
        ]

    def unchanged(self) -> bool:
        return is_unchanged(
            self._logits(), self.fresh, exact=self.modules[torch.float32].device.type == "cpu"
        )

    def _weights(self, member: EnsembleMember) -> Any:
        """Return the shared weights in the member's precision, with its attention set."""
        module = self.modules[member.dtype]
        if module.config._attn_implementation != member.attention:
            module.set_attn_implementation(member.attention)
        return module

    def member(self, member: EnsembleMember) -> ReferenceModel:
        if member not in self.members:
            if member == REFERENCE_RUN:
                model = self._model(member)
                model.branches = find(model.module, model.modules, lambda: self._probe(member))
            else:
                model = self._model(member, self.member(REFERENCE_RUN))
            self.members[member] = model
        return self.members[member]

    def _model(
        self,
        member: EnsembleMember,
        reference: ReferenceModel | None = None,
        anew: Decisions | None = None,
    ) -> ReferenceModel:
        given = (self._weights(member), self.tokenizer, member, self.path, self.norms)
        return ReferenceModel(*given, reference, anew, self.allowed)

    def _anew(
        self, scenario: Scenario, case: Case, decisions: Decisions
    ) -> tuple[ReferenceModel, dict[str, Tensor]]:
        """Run the reference with ties decided the other way, and nothing reused."""
        model = self._model(REFERENCE_RUN, anew=decisions)
        model.branches = self.member(REFERENCE_RUN).branches
        return model, self._member_run(model, scenario, case, case.forced)

    def group(self) -> Group:
        config = self.modules[torch.float32].config.get_text_config()
        sealed = loose_json.mapping(self.job.checkpoint / SEAL)  # what the checkpoint was made from
        return Group(
            model=self.job.model.id,
            backend=self.job.column.id,
            identity={
                "engine": "reference",
                "device": self.modules[torch.float32].device.type,
                "digest": self.job.digest,
                "source": str(sealed.get("source", self.job.checkpoint)),
                "layers": config.num_hidden_layers,
                "width": config.hidden_size,
                "stream": max(self.norms) / config.hidden_size**0.5,
                "layer_list": self.path,
                "members": [REFERENCE_RUN.name, *(member.name for member in self.ensemble)],
                "precisions": self.precisions,
                "float32_disagreement": self.disagreement,
                "routers": len(routers(self.modules[torch.float32])),
            },
            config=dict(_values(config.to_dict())),
        )

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Tensor]:
        """Return the observations of the reference and all requested baseline runs. The latter are
        held to the reference's tokens, so that all are judged in one context. A case along other
        tokens returns only the forced runs, one along a candidate's experts all of them. Raises
        Refused if the model lacks what the case needs.
        """
        if scenario.name != self.scenario:
            self.scenario = scenario.name
            for model in self.members.values():
                model.forget_parts()
        model = self.member(REFERENCE_RUN)
        require_layers(case, len(model.modules))
        model.parts.require(scenario.needs(case))
        if case.along:
            again = partial(self._anew, scenario, case)
            model, reference = along_experts(load_file(case.observed), again, self.allowed)
        else:
            reference = self._member_run(model, scenario, case, case.forced)
        forced = case.forced or continuation(reference, len(case.prompts))
        auxiliary = collect_branch_values(reference, model.unedited())
        auxiliary |= _ties(scenario, case, reference, model)
        found = _named("truth", reference) | _named("aux", auxiliary)
        for member in self._wanted(scenario, case):
            run = self._model(member, model, {}) if case.along else self.member(member)
            found |= _named(member.name, self._member_run(run, scenario, case, forced))
        if scenario.name not in (PROBING.name, ONE_LAYER.name):
            found |= self._defined_otherwise(scenario, case, forced)
        return found

    def _defined_otherwise(
        self, scenario: Scenario, case: Case, forced: Mapping[str, tuple[tuple[int, ...], ...]]
    ) -> dict[str, Tensor]:
        """Return what other definitions compute in float32, held to the same tokens."""
        module = self.modules[torch.float32]
        found: dict[str, Tensor] = {}
        for name, entered in definitions(module).items():
            member = replace(REFERENCE_RUN, name=f"{DEFINITION}{name}")
            if member not in self.members:
                self.members[member] = self._model(member)
            with entered(module):
                values = self._member_run(self.members[member], scenario, case, forced)
            found |= _named(member.name, values)
        return found

    def _wanted(self, scenario: Scenario, case: Case) -> Sequence[EnsembleMember]:
        """Return the requested baseline runs; determining a layout needs both precisions."""
        if scenario is PROBING:
            return self.ensemble
        narrow = case.key in self.job.float32_only
        wanted = [Precision.FLOAT32] if narrow else list(map(Precision, self.precisions))
        return [m for m in self.ensemble if any(in_precision(m.name, each) for each in wanted)]

    def _member_run(
        self,
        model: ReferenceModel,
        scenario: Scenario,
        case: Case,
        forced: Mapping[str, tuple[tuple[int, ...], ...]],
    ) -> dict[str, Tensor]:
        self._weights(model.member)
        model.begin_case(case.prompts)
        # Each baseline run gets the time limit that a column has for its single run.
        event_log.append_event(GroupFolder(self.job.folder).events, "again", case=case.key)

        def run(run_case: Case) -> Any:
            name = ("edited" if run_case.active else "clean") if scenario.twin(case) else ""
            model.forced = forced.get(name, ())
            return scenario.specification(model, run_case)

        return flatten_runs(scenario, case, run, only=() if case.along else tuple(case.forced))

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.tokenizer(prompt).input_ids) for prompt in case.prompts)

    def close(self) -> None:
        pass


def _named(member: str, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {f"{member}|{site}": value for site, value in values.items()}


def _ties(
    scenario: Scenario, case: Case, reference: Mapping[str, Tensor], model: ReferenceModel
) -> dict[str, Tensor]:
    """Return the tokens that were tied at a router in any run of the case, by layer. Their sites
    have the place of the observation, since a scenario may reorder or repeat its prompts.
    """
    tied: dict[str, Tensor] = {}
    runs = model.runs or (*model.unedited(), *model.edited, *model.prefills)
    run_names = ("clean", "edited") if scenario.twin(case) else ("",)
    own = [tuple(model.tokenize(prompt)) for prompt in case.prompts]
    for place, ids in places(reference, runs, own).items():
        found: dict[tuple[int, int], Tensor] = {}
        for run in runs:
            if tuple(run.ids.tolist()) not in ids:
                continue
            for step, ties in enumerate(run.ties):
                for layer, tokens in ties.items():
                    before = found.get((step, layer))
                    found[step, layer] = tokens if before is None else before | tokens
        for (step, layer), tokens in found.items():
            if bool(tokens.any()):
                for run_name in run_names:
                    site = Site(TIED, prompt=place, step=step, layer=layer, run=run_name)
                    tied[str(site)] = tokens.to(torch.uint8)
    return tied


def places(
    reference: Mapping[str, Tensor], runs: Sequence[PromptRun], prompts: Sequence[tuple[int, ...]]
) -> dict[int, set[tuple[int, ...]]]:
    """Return the prompt ids of each place of a result: those of the runs with exactly its streams
    or, without streams, its logits; otherwise those of the case's prompt of that number.

    Logits and single rows are ambiguous: after a layer that is set to zero, all prompts are equal.
    If the matching runs' prompts differ in length, the case's own prompt is used.
    """
    sites = {Site.parse(name): value for name, value in reference.items()}
    found: dict[int, set[tuple[int, ...]]] = {}
    for place in {site.prompt for site in sites}:
        for name in ("stream", "logits"):
            given = [(s, v) for s, v in sites.items() if (s.prompt, s.name) == (place, name)]
            ids = {tuple(run.ids.tolist()) for run in runs for s, v in given if run.gave(s, v)}
            if ids:
                break
        own = set(prompts[place : place + 1])
        found[place] = ids if ids and len(set(map(len, ids))) == 1 else own
    return found


def load(job: Job, dtype: torch.dtype, tokenizer: Any) -> Any:
    """Load the checkpoint in one precision: its bf16 weights, and other values (rotary frequencies,
    an embedding's scale) as the definition computes them in that precision.
    """
    module = AutoModelForCausalLM.from_pretrained(
        job.checkpoint, dtype=dtype, attn_implementation="eager"
    )
    if (adapter := adapter_of(job.checkpoint)) is not None:
        from peft import PeftModel

        # Merge into the weights, so that all baseline runs use one matrix. In float32 only the
        # rounding changes; in bf16 the merge adds the same error as serving a merged model does.
        module = PeftModel.from_pretrained(module, adapter).merge_and_unload()
    module = module.eval().to("cuda" if torch.cuda.is_available() else "cpu")
    generate_greedily(module, tokenizer)
    return module


def _values(config: Mapping[str, Any], within: str = "") -> Iterator[tuple[str, str]]:
    """Yield a config's strings, numbers, booleans and nulls by key, nested ones as `key.inner`:
    strings as they are, the rest as JSON.
    """
    for key, value in config.items():
        if isinstance(value, Mapping):
            yield from _values(value, f"{within}{key}.")
        elif isinstance(value, str | int | float | None):
            yield f"{within}{key}", value if isinstance(value, str) else json.dumps(value)


def open_engine(job: Job) -> ReferenceEngine:
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return ReferenceEngine(job)
