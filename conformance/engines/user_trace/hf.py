"""A user's function on transformers: the float32 reference and the baseline runs around it.

The reference is float32 with eager attention. The baseline runs, in float32 and in bf16, use other
attention implementations, orders of addition and roundings. Their spread is how far an engine may
be off.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, KeysView, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from nnsight.intervention.source import STATE
from torch import Tensor
from transformers import GenerationConfig

from conformance.engines.hf import HFEngine
from conformance.engines.reference.ensemble import has_sdpa
from conformance.engines.reference.forwards import Forwards, other_forwards
from conformance.engines.traced import Probe
from conformance.engines.tree import follow
from conformance.engines.user_trace import catalogue, sequences, user_file
from conformance.runner.store import GroupFolder, event_log
from conformance.spec.builtin.probe import PROBING
from conformance.spec.builtin.user_trace import CALLED
from conformance.spec.records import Case, Group, Job, Precision, Site, Status
from conformance.spec.residual_stream import LAYOUTS
from conformance.spec.scenario import Scenario

#: The layouts of transformers' layers: a batch of rows, or a tuple that begins with one.
BATCHED = ("batched", "tuple_batched")


@dataclass(frozen=True)
class Way:
    """One baseline run: its attention, sums in halves (`split`), and fewer roundings (`fused`)."""

    name: str
    attention: str = "eager"
    split: bool = False
    fused: bool = False


REFERENCE_RUN = Way("truth")
WAYS = (
    Way("eager"),
    Way("split", split=True),
    Way("sdpa", "sdpa"),
    Way("fused", "sdpa", fused=True),
    Way("fused_split", "sdpa", split=True, fused=True),
)


class CheckedHF:
    """One model in both precisions, running the user's function in each baseline run."""

    def __init__(self, job: Job, functions: user_file.Functions) -> None:
        self.job = job
        self.functions = functions
        self.reference = HFEngine(replace(job, precision=Precision.FLOAT32))
        half = HFEngine(replace(job, precision=Precision.BF16), self.reference.model.tokenizer)
        self.engines = {Precision.FLOAT32: self.reference, Precision.BF16: half}
        module = self.reference.model._module
        self.ways = ways_of(module)
        #: The ids at which the checkpoint itself ends a generation.
        self.end: Any = None
        with suppress(OSError):  # it may have no generation settings
            self.end = GenerationConfig.from_pretrained(job.checkpoint).eos_token_id
        self.layers = dict(enumerate(follow(module, self.reference.path)))
        self.streams = {precision: self._streams(one) for precision, one in self.engines.items()}
        self.resident = user_file.resident()
        exact = self.streams[Precision.FLOAT32]
        noise = tuple(0.0 for _ in exact)
        for engine in self.engines.values():
            engine.lm.probe = Probe(exact, noise)

    def _streams(self, engine: HFEngine) -> tuple[Tensor, ...]:
        """Return the probe prompt's stream after each layer, computed as in the reference; set the
        layout by the form of the outputs.
        """
        with computing(engine.model._module, REFERENCE_RUN):
            outputs = engine._outputs(len(self.layers))
        layout = next(name for name in BATCHED if LAYOUTS[name].fits(outputs[0]))
        engine.lm.layers.layout = layout
        return tuple(LAYOUTS[layout].read(one).detach().float().cpu() for one in outputs)

    def group(self) -> Group:
        config = self.reference.model._module.config.get_text_config()
        found = self.reference.group()
        identity = {
            **found.identity,
            "digest": self.job.digest,
            "layers": config.num_hidden_layers,
            "width": config.hidden_size,
            "architecture": config.model_type,
            "ways": [way.name for way in self.ways],
        }
        layout = self.reference.lm.layers.layout
        return replace(found, layout=layout, reason="", status=Status.OK, identity=identity)

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Tensor]:
        """Return the probe's streams or, for a user's file, these by prefix. `precision:way|site`
        is what the function returned, `layers|site` what the layers computed in the reference.
        `clean|site` and the other keys of `catalogue.everything` are what a value can be mistaken
        for.
        """
        if scenario.name == PROBING.name:
            return self._probe()
        with user_file.bounded_memory(self.job):
            return self._run(case)

    def _run(self, case: Case) -> Mapping[str, Tensor]:
        with (
            computing(self.reference.model._module, REFERENCE_RUN),
            sequences.on_transformers(self.reference.model._module, self.layers) as seen,
        ):
            called: dict[str, str] = {}
            reference = self._call(self.reference, case, called)
        found = {f"float32:truth|{site}": value for site, value in reference.items()}
        text = json.dumps(called).encode()
        found[CALLED] = torch.tensor(list(text), dtype=torch.uint8)
        found |= {f"layers|{site}": value for site, value in seen.values.items()}
        found |= catalogue.everything(
            self.reference.model._module, self.reference.path, seen.values
        )
        for precision, engine in self.engines.items():
            for way in self.ways:
                if precision is Precision.FLOAT32 and way.name == "eager":
                    continue
                values = self._baseline_values(engine, way, case, reference.keys())
                found |= {f"{precision}:{way.name}|{site}": v for site, v in values.items()}
        return found

    def _baseline_values(
        self, engine: HFEngine, way: Way, case: Case, names: KeysView[str]
    ) -> dict[str, Tensor]:
        """Return the function's values in a baseline run. If its attention does not give what the
        function reads (probabilities), use the reference's attention.
        """
        if way.attention != REFERENCE_RUN.attention:
            with suppress(Exception), computing(engine.model._module, way):
                values = self._call(engine, case)
                if values.keys() == names:
                    return values
        with computing(engine.model._module, replace(way, attention=REFERENCE_RUN.attention)):
            return self._call(engine, case)

    def _call(
        self, engine: HFEngine, case: Case, called: dict[str, str] | None = None
    ) -> dict[str, Tensor]:
        adapter = case.options["function"] == "trace"
        event_log.append_event(GroupFolder(self.job.folder).events, "again", case=case.key)
        # A user's own generation ends at the model's end token; the adapter's never does.
        engine.model._module.generation_config.eos_token_id = None if adapter else self.end
        model = engine.lm if adapter else engine.model
        return user_file.call(self.functions.of(case), model, case.prompts, called)

    def still_well(self) -> bool:
        """Return whether, after a function failed, the probe prompt's stream is bitwise unchanged
        and no memory was kept.
        """
        kept = user_file.resident() - self.resident
        return kept < user_file.KEPT_BYTES and self.unchanged()

    def unchanged(self) -> bool:
        return all(
            torch.equal(*pair)
            for precision, engine in self.engines.items()
            for pair in zip(self._streams(engine), self.streams[precision], strict=True)
        )

    def _probe(self) -> dict[str, Tensor]:
        """Return the streams as the reference engine writes them, with one baseline run."""
        names = {Precision.FLOAT32: "truth", Precision.BF16: "eager"}
        return {
            f"{names[precision]}|{Site('stream', layer=layer)}": rows
            for precision, streams in self.streams.items()
            for layer, rows in enumerate(streams)
        }

    def prompt_ids(self, case: Case) -> tuple[tuple[int, ...], ...]:
        return self.reference.prompt_ids(case)

    def close(self) -> None:
        pass


def ways_of(module: Any) -> tuple[Way, ...]:
    """Return the baseline runs of a model; without sdpa, the others with eager attention."""
    if has_sdpa(module):
        return WAYS
    return tuple(replace(way, attention="eager") for way in WAYS if way.name != "sdpa")


@contextmanager
def computing(module: Any, way: Way) -> Iterator[None]:
    """Make the model compute as in this baseline run inside the with block."""
    if module.config._attn_implementation != way.attention:
        module.set_attn_implementation(way.attention)
    with _below_nnsight(other_forwards(module, split=way.split, fused=way.fused)):
        yield


@contextmanager
def _below_nnsight(forwards: Forwards) -> Iterator[None]:
    """Make modules compute with these forwards between the input and output that nnsight shows to a
    trace, so that writes to either take effect.

    A module whose operations a trace reads (`.source`) keeps its own forward, since nnsight
    replaces this one with it.
    """
    states = [(child.__dict__[STATE], forward) for child, forward in forwards.items()]
    before = [(state.body, state.sourced, state.compiled) for state, _ in states]
    for state, forward in states:
        state.body, state.sourced, state.compiled = _body(forward), False, None
    try:
        yield
    finally:  # a function that fails in this run is called again in another
        for (state, _), own in zip(states, before, strict=True):
            state.body, state.sourced, state.compiled = own


def _body(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward that drops the module, which nnsight passes as the first argument."""
    return lambda _, *args, **kwargs: forward(*args, **kwargs)


def open_engine(job: Job) -> CheckedHF:
    functions = user_file.Functions(job.cases)
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
    return CheckedHF(job, functions)
