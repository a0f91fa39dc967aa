"""A tiny residual network, in float32 and in several bf16 baseline runs, to judge without engines.

`observe` gives the observations of a scenario-like cell; faults are put in by the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import torch
from torch import Tensor

from conformance.judge.cell.judge_cell import Judgement, judge_cell, read_reference
from conformance.judge.cell.judgement import unknown
from conformance.judge.cell.measures import metrics
from conformance.judge.cell.measures.floor import Distance, Floor, floors, measures
from conformance.spec.records import Limits, Precision, Site, Thresholds

LAYERS = 5
WIDTH = 64
VOCABULARY = 97
IDS = ((3, 14, 15, 92, 65), (27, 18, 28, 18, 28, 45, 90, 45, 23))
#: baseline run → into how many partial sums a projection is split, each rounded to bf16.
BASELINE_RUNS = {"eager": 1, "sdpa": 2, "padded": 3, "split": 4}
CANDIDATE = 5

Edit = Callable[[Tensor], Tensor]
Observations = dict[str, Tensor]


@dataclass(frozen=True)
class Weights:
    embedding: Tensor
    mix: tuple[Tensor, ...]
    up: tuple[Tensor, ...]
    head: Tensor
    massive: Tensor = field(default_factory=lambda: torch.tensor(0.0))


@cache
def weights(seed: int = 0) -> Weights:
    """bf16 weights in float32; dimension 7 of the first token becomes massive at layer 2."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float) -> Tensor:
        return (torch.randn(*shape, generator=generator) * scale).bfloat16().float()

    return Weights(
        embedding=draw(VOCABULARY, WIDTH, scale=1.0),
        mix=tuple(draw(WIDTH, WIDTH, scale=0.8 / WIDTH**0.5) for _ in range(LAYERS)),
        up=tuple(draw(WIDTH, WIDTH, scale=1.2 / WIDTH**0.5) for _ in range(LAYERS)),
        head=draw(WIDTH, VOCABULARY, scale=2 / WIDTH**0.5),
    )


def forward(
    ids: Sequence[int], dtype: torch.dtype, parts: int, edits: Mapping[int, Edit], seed: int = 0
) -> tuple[list[Tensor], Tensor]:
    """The stream after each layer [T, WIDTH], and the last token's logits [VOCABULARY]."""
    w = weights(seed)

    def project(value: Tensor, weight: Tensor) -> Tensor:
        pieces = zip(value.chunk(parts, -1), weight.to(dtype).chunk(parts, 0), strict=True)
        total: Tensor | None = None
        for left, right in pieces:
            total = left @ right if total is None else total + left @ right
        assert total is not None
        return total

    def normed(value: Tensor) -> Tensor:
        scale = value.float().square().mean(-1, keepdim=True).add(1e-6).rsqrt()
        return (value.float() * scale).to(dtype)

    stream = w.embedding[list(ids)].to(dtype)
    count = torch.arange(1, len(ids) + 1, dtype=torch.float32).unsqueeze(-1)
    streams = []
    for layer in range(LAYERS):
        past = (project(normed(stream), w.mix[layer]).float().cumsum(0) / count).to(dtype)
        stream = stream + past
        stream = stream + torch.tanh(project(normed(stream), w.up[layer]))
        if layer == 2:
            spike = torch.zeros_like(stream)
            spike[0, 7] = 900 + 40 * stream[0, 3].float()
            stream = stream + spike
        if layer in edits:
            stream = edits[layer](stream)
        streams.append(stream)
    return streams, project(normed(stream), w.head)[-1]


def observe(
    dtype: torch.dtype,
    parts: int,
    *,
    edits: Mapping[int, Edit] | None = None,
    prompts: Sequence[Sequence[int]] = IDS,
    steps: int = 1,
    forced: Sequence[Sequence[int]] = (),
    run: str = "",
    only: Callable[[Site], bool] = lambda site: True,
) -> Observations:
    """All streams, logits and tokens of every prompt and step of one run."""
    found: Observations = {}
    for prompt, start in enumerate(prompts):
        ids = list(start)
        for step in range(steps):
            streams, logits = forward(ids, dtype, parts, edits or {})
            token = int(logits.argmax())
            if forced:
                token = forced[prompt][step]
            values = {Site("logits", prompt, step, run=run): logits}
            values[Site("tokens", prompt, step, run=run)] = torch.tensor([token])
            for layer, stream in enumerate(streams):
                rows = stream if step == 0 else stream[-1:]
                values[Site("stream", prompt, step, layer, run)] = rows
            found |= {str(site): value for site, value in values.items() if only(site)}
            ids.append(token)
    return found


def observe_twice(name: str) -> Callable[[torch.dtype, int], Observations]:
    """Observe a stream a second time, under this name."""

    def run(dtype: torch.dtype, parts: int) -> Observations:
        found = observe(dtype, parts)
        return found | {f"p0/s0/{name}": found["p0/s0/stream.1"].clone()}

    return run


def auxiliary(prompts: Sequence[Sequence[int]] = IDS, run: str = "") -> Observations:
    """What each branch of each layer of the reference adds, and the stream after the next norm."""
    w = weights()
    found: Observations = {}
    for prompt, ids in enumerate(prompts):
        stream = w.embedding[list(ids)]
        found[str(Site("embedding", prompt, run=run))] = stream
        for layer, after in enumerate(forward(ids, torch.float32, 1, {})[0]):
            normed = after * after.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
            before = stream * stream.square().mean(-1, keepdim=True).add(1e-6).rsqrt()
            count = torch.arange(1, len(ids) + 1).unsqueeze(-1)
            past = (before @ w.mix[layer]).cumsum(0) / count
            for name, value in (("attention", past), ("mlp", after - stream - past)):
                found[str(Site(name, prompt, 0, layer, run))] = value
            found[str(Site("normed", prompt, 0, layer, run))] = normed
            stream = after
    return found


def tokens_of(observed: Mapping[str, Tensor], run: str = "") -> tuple[tuple[int, ...], ...]:
    """The generated ids by prompt."""
    found: dict[int, list[int]] = {}
    for name, value in observed.items():
        site = Site.parse(name)
        if site.name == "tokens" and site.run == run:
            found.setdefault(site.prompt, []).append(int(value))
    return tuple(tuple(ids) for _, ids in sorted(found.items()))


def edited(
    dtype: torch.dtype,
    parts: int,
    write: Mapping[int, Edit],
    from_layer: int = 0,
    steps: int = 1,
    forced: Mapping[str, Sequence[Sequence[int]]] | None = None,
    always: Mapping[int, Edit] | None = None,
) -> Observations:
    """Both runs of an intervention, with the edits `always`; streams from one layer on."""

    def read(site: Site) -> bool:
        return site.name == "logits" or (site.layer is not None and site.layer >= from_layer)

    held, both = forced or {}, dict(always or {})
    keep = read if steps == 1 else lambda site: True
    found: Observations = {}
    for run, edits in (("clean", both), ("edited", both | dict(write))):
        found |= observe(
            dtype, parts, edits=edits, steps=steps, forced=held.get(run, ()), run=run, only=keep
        )
    return found


def reference(observe_as: Callable[[torch.dtype, int], Observations]) -> dict[str, Observations]:
    """The reference and the baseline runs of something observed."""
    found = {"truth": observe_as(torch.float32, 1)}
    for name, parts in BASELINE_RUNS.items():
        found[name] = observe_as(torch.bfloat16, parts)
    return found


def floor(
    reference: Tensor, baseline: Tensor, fallback: Tensor | None = None, **more: Any
) -> Floor:
    """The noise floor of one observation: reference [T, D], baseline [M, T, D]."""
    return floors([reference], baseline, [fallback], [None], **more)[0]


def measure(candidate: Tensor, noise_floor: Floor, limits: Limits) -> Distance:
    return measures([candidate], [noise_floor], limits)[0]


def judge(
    candidate: Mapping[str, Tensor],
    against: Mapping[str, Mapping[str, Tensor]],
    *,
    has_edit: bool = False,
    precision: Precision = Precision.BF16,
    ids: tuple[tuple[int, ...], ...] = IDS,
    reference_ids: tuple[tuple[int, ...], ...] = IDS,
    limits: Limits | None = None,
    reading: Mapping[str, Any] | None = None,
    **more: Any,
) -> Judgement:
    """`reading` are further arguments of `read_reference`, `more` those of `judge_cell`."""
    read = read_reference(against, has_edit=has_edit, precision=precision, **(reading or {}))
    if isinstance(read, str):
        return unknown(read)
    return judge_cell(
        candidate,
        read,
        has_edit=has_edit,
        prompt_ids=ids,
        reference_ids=reference_ids,
        limits=limits or Thresholds().of(precision),
        **more,
    )


def add(vector: Tensor, rows: slice = slice(None), times: float = 1.0) -> Edit:
    """Steering: add a vector at some tokens."""

    def edit(stream: Tensor) -> Tensor:
        stream = stream.clone()
        stream[rows] = stream[rows] + (times * vector).to(stream.dtype)
        return stream

    return edit


def zero(stream: Tensor) -> Tensor:
    return stream * 0


def vector(dose: float, seed: int = 1) -> Tensor:
    """A fixed direction, `dose` times as long as the usual stream."""
    drawn = torch.randn(WIDTH, generator=torch.Generator().manual_seed(seed))
    size = metrics.rows(observe(torch.float32, 1)["p1/s0/stream.1"]).norm(dim=-1).median()
    found: Tensor = drawn / drawn.norm() * dose * float(size)
    return found
