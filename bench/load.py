"""Many requests at once: is every answer the one of the same request alone, and does any stay?

    python bench/load.py [--requests 200] [--clients 16] [--seed 1] [-b vllm-serve] [-b vllm-async]
    python bench/load.py --control        # one request gets its neighbour's direction: exits 1

So many clients send requests drawn from the seed to one engine of each column, on the loopback. A
third has a block that only reads; the others edit a layer of their own by a direction of their own.
Of those some are given up by their client in the middle, some raise, and some hang: their block
holds the engine for three seconds, and their client does not wait for that.

Each that is to be answered is sent alone before. *Same* is the same to the last bit, as long as
what vLLM generates without any block is that, alone and under the same load. Where it is not (the
sums of a batch may be others than those of one request), it is as near as the judge wants float32
to be to its noise (`FLOAT32_LIMITS`). The difference between vLLM's own runs measures the noise.

Afterwards no block may be left, no process of the engine may have grown (as in bench/soak.py) or
have more threads, four requests must be answered as before, and no process may be left. Exits 1
when one of these is not so, or when an answer is another one or lost.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import psutil
import typer
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from torch import Tensor
from transformers import AutoConfig

from bench.soak import PROMPTS, Weight, opened, show, weights
from conformance.engines.lm import words
from conformance.engines.vllm import async_engine
from conformance.engines.vllm.sampled import make_untraced_parameters, parse_output
from conformance.runner.processes import sessions
from conformance.spec.direction import direction
from conformance.spec.records import FLOAT32_LIMITS, Precision

COLUMNS = ("vllm-serve", "vllm-async")

#: Of how many requests one is aborted, raises, or hangs.
ONE_IN = {"aborted": 16, "raises": 20, "hangs": 50}
#: How the file is called that a block leaves before it hangs; its request's number follows.
HUNG = "hung-"
#: Tokens of a request that is aborted: too many to be there before its client gives up.
LONG = 200
#: After how many tokens it is, where the client sees them.
AFTER = 3
#: Seconds that a block hangs, and that its client waits for it on the asynchronous engine; on
#: nnsight-serve it hangs up as one that aborts does.
HANGS, WAITS = 3.0, 2.0
#: Seconds after which an answer is lost.
PATIENCE = 240.0
#: Seconds that processes may take to go.
GONE = 30.0


class Kind(StrEnum):
    EDITED = "edited"
    PLAIN = "plain"
    ABORTED = "aborted"
    RAISES = "raises"
    HANGS = "hangs"

    @property
    def answered(self) -> bool:
        return self in (Kind.EDITED, Kind.PLAIN)

    @property
    def given_up(self) -> bool:
        return self in (Kind.ABORTED, Kind.HANGS)


class End(StrEnum):
    SAME = "same"
    OTHER = "other"
    EXPECTED = "failed as expected"
    LOST = "lost"


@dataclass(frozen=True)
class Asked:
    """One request. `dose` is how long the direction is that it adds after `layer`."""

    number: int
    kind: Kind
    prompt: str
    steps: int
    layer: int
    dose: float


def drawn(count: int, seed: int, layers: int) -> list[Asked]:
    """So many requests of all kinds, in any order; the same for the same seed."""
    chance = random.Random(seed)
    kinds = [Kind.PLAIN] * (count // 3)
    for name, one_in in ONE_IN.items():
        kinds += [Kind(name)] * max(1, count // one_in)
    kinds += [Kind.EDITED] * (count - len(kinds))
    chance.shuffle(kinds)
    return [
        Asked(
            number,
            kind,
            chance.choice(PROMPTS),
            LONG if kind is Kind.ABORTED else chance.randint(1, 8),
            chance.randrange(layers),
            chance.uniform(1.0, 32.0),
        )
        for number, kind in enumerate(kinds)
    ]


def send(lm: Any, asked: Asked, vector: Tensor) -> None:
    """Send a request off: the logits of each of its steps, and what its kind does besides. One
    that hangs leaves a file, so that it is known that it did.
    """
    hung = Path(tempfile.gettempdir(), f"{HUNG}{asked.number}")
    number, layer, steps, last = asked.number, asked.layer, asked.steps, asked.steps - 1
    edits, raises = asked.kind is not Kind.PLAIN, asked.kind is Kind.RAISES
    pause = HANGS if asked.kind is Kind.HANGS else 0.0
    with lm.send(asked.prompt, steps) as tracer:
        logits = [].save()  # type: ignore[attr-defined]  # nnsight gives every object one
        for step in tracer.iter[:steps]:
            if edits:
                # Raw: without a probe nobody has settled how a layer holds the stream.
                half = lm.layers[layer].envoy.output[0]
                half[:] = half + vector.to(half)
            logits.append(lm.logits)
            if raises and step == last:
                raise ValueError(f"request {number}")
            if pause and step == 0:
                hung.touch()
                time.sleep(pause)


class Served:
    """Clients of nnsight-serve, each waiting in a thread of its own; they give up by hanging up."""

    def __init__(self, lm: Any, clients: int) -> None:
        from conformance.engines.vllm import serve_engine

        serve_engine.DeferredServeBackend.clients = self.threads = ThreadPoolExecutor(clients)
        self.lm, self.sent = lm, async_engine.SENT

    async def answer(self, asked: Asked, vector: Tensor) -> Mapping[str, Any]:
        with self.lm.aborting(0, AFTER) if asked.kind.given_up else nullcontext():
            send(self.lm, asked, vector)
        return await asyncio.wrap_future(self.sent.pop())

    async def bare(self, prompt: str, how: Any) -> Any:
        """vLLM's output without any block."""
        run = asyncio.get_running_loop().run_in_executor
        [output] = await run(self.threads, self.lm.submit, [prompt], how)
        return output


class Streamed:
    """The same of the asynchronous engine in this process; they give up by closing the stream."""

    def __init__(self, lm: Any, _: int) -> None:
        self.lm = lm

    async def answer(self, asked: Asked, vector: Tensor) -> Mapping[str, Any]:
        send(self.lm, asked, vector)
        stream = async_engine.SENT.pop()
        if asked.kind is not Kind.HANGS:
            return await async_engine.saved(stream, AFTER if asked.kind is Kind.ABORTED else None)
        try:
            return await asyncio.wait_for(async_engine.saved(stream), WAITS)
        except TimeoutError:
            return {}

    async def bare(self, prompt: str, how: Any) -> Any:
        [output] = await async_engine.generated(self.lm.model.vllm_entrypoint, [prompt], how)
        return output


FRONTS = {"vllm-serve": Served, "vllm-async": Streamed}


async def together(
    every: Sequence[Asked], clients: int, answer: Callable[[Asked], Awaitable[Any]]
) -> dict[int, Any]:
    """The answer or error of each request by its number, from so many clients at once."""
    answers: dict[int, Any] = {}

    async def client(waiting: Iterator[Asked]) -> None:
        for asked in waiting:
            try:
                answers[asked.number] = await asyncio.wait_for(answer(asked), PATIENCE)
            except Exception as error:  # noqa: BLE001 - whatever comes is counted
                answers[asked.number] = error

    waiting = iter(every)
    await asyncio.gather(*(client(waiting) for _ in range(clients)))
    return answers


def apart(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """How far the logits of two answers are apart, by the largest: up to the first step after
    which they go on with another token. 0 is the same to the last bit.
    """
    if [step.shape for step in one] != [step.shape for step in other]:
        return math.inf
    furthest = 0.0
    for a, b in zip(one, other, strict=True):
        off = float((a - b).abs().max() / b.abs().max().clamp(min=1e-30))
        furthest = max(furthest, off if math.isfinite(off) else math.inf)
        if a.argmax() != b.argmax():
            break
    return furthest


def whole(answers: dict[int, Any]) -> dict[int, Any]:
    """Return the answers; raise the first error among them."""
    for answer in answers.values():
        if isinstance(answer, BaseException):
            raise answer
    return answers


def edits_shown(answers: Sequence[Sequence[Tensor]]) -> bool:
    """Whether no two of them begin alike: else another's edit might go unnoticed."""
    return len({tuple(steps[0].tolist()) for steps in answers}) == len(answers)


def ended(asked: Asked, answer: Any, alone: Sequence[Tensor] | None, allowed: float) -> End:
    """How a request ended, by what it does alone and how far off that it may be."""
    if isinstance(answer, BaseException):
        meant = asked.kind is Kind.RAISES and words(answer) == f"ValueError: request {asked.number}"
        return End.EXPECTED if meant else End.LOST
    if not answer:
        return End.EXPECTED if asked.kind.given_up else End.LOST
    if alone is None:
        return End.OTHER
    return End.SAME if apart(answer["logits"], alone) <= allowed else End.OTHER


def table(title: str, every: Sequence[Asked], ends: Mapping[int, End]) -> Table:
    """Requests by kind and how they ended."""
    counts = Counter((asked.kind, ends[asked.number]) for asked in every)
    shown = Table("requests", *(str(end) for end in End), "all", title=title)
    for kind in Kind:
        of_kind = [counts[kind, end] for end in End]
        shown.add_row(kind, *map(str, of_kind), str(sum(of_kind)))
    return shown


def allowed_by(bare: Sequence[float]) -> tuple[float, str]:
    """How far an answer may be off, by how far each of vLLM's own is; and that in words."""
    same, furthest = sum(off == 0 for off in bare), max(bare)
    words = f"without any block: {same} of {len(bare)} the same to the last bit as alone"
    if not furthest:
        return 0.0, f"{words}; so must be the others"
    allowed = FLOAT32_LIMITS.k_max * furthest
    return allowed, f"{words}, the others up to {furthest:.1e} off; allowed: {allowed:.1e}"


def grown(before: Mapping[str, Weight], after: Mapping[str, Weight]) -> list[str]:
    """The processes that have grown, have more threads, or were not there before or are gone."""
    return [
        name
        for name in sorted(before.keys() | after.keys())
        if name not in before
        or name not in after
        or after[name].grown(before[name])
        or after[name].threads > before[name].threads
    ]


class Load:
    """Requests, and the engine and clients by which they are sent."""

    def __init__(self, engine: Any, front: Any, every: Sequence[Asked], clients: int) -> None:
        width = AutoConfig.from_pretrained(engine.job.checkpoint).hidden_size
        self.lm, self.front, self.every, self.clients = engine.lm, front, every, clients
        self.vectors = {one.number: direction(width, one.dose, one.number) for one in every}
        self.answering = [one for one in every if one.kind.answered]
        #: Seconds of the last that were sent together.
        self.seconds = 0.0

    def _sent(
        self, every: Sequence[Asked], clients: int, answer: Callable[[Asked], Awaitable[Any]]
    ) -> dict[int, Any]:
        begun = time.monotonic()
        answers: dict[int, Any] = async_engine.wait_for(together(every, clients, answer))
        self.seconds = time.monotonic() - begun
        return answers

    def with_blocks(
        self, every: Sequence[Asked], clients: int, other: Mapping[int, Tensor] | None = None
    ) -> dict[int, Any]:
        """What blocks save, or raise; `other` are directions in the place of their own."""
        vectors = self.vectors | dict(other or {})
        return self._sent(every, clients, lambda one: self.front.answer(one, vectors[one.number]))

    def without(self, clients: int) -> dict[int, Sequence[Tensor]]:
        """What vLLM generates by itself, as far as the same requests come: log-probabilities."""

        async def bare(one: Asked) -> Sequence[Tensor]:
            tokens = AFTER if one.kind is Kind.ABORTED else one.steps
            output = await self.front.bare(one.prompt, make_untraced_parameters(tokens))
            return parse_output(output.outputs[0])["logits"]

        return self._sent(self.every, clients, bare)

    def rates(self) -> tuple[float, float]:
        """Requests a second, of those that are answered: without any block, and with."""

        async def bare(one: Asked) -> Any:
            how = make_untraced_parameters(one.steps)
            how.logprobs = None  # they take longer than the rest: a block has the logits for less
            return await self.front.bare(one.prompt, how)

        self._sent(self.answering, self.clients, bare)
        rate = len(self.answering) / self.seconds
        self.with_blocks(self.answering, self.clients)
        return rate, len(self.answering) / self.seconds

    def left(self) -> int:
        """How many blocks the engine holds, once it had the time to forget them."""
        until = time.monotonic() + PATIENCE
        held: int = sum(self.lm.rpc("nnsight_request_count"))
        while held and time.monotonic() < until:
            time.sleep(0.2)
            held = sum(self.lm.rpc("nnsight_request_count"))
        return held


def column_loaded(load: Load, title: str, *, control: bool) -> bool:
    """Print what one column did; whether anything was wrong."""
    every, answering, clients = load.every, load.answering, load.clients
    bare_alone = whole(load.without(1))
    alone = {n: answer["logits"] for n, answer in whole(load.with_blocks(answering, 1)).items()}
    shown = edits_shown([alone[one.number] for one in every if one.kind is Kind.EDITED])
    bare = whole(load.without(clients))
    allowed, said = allowed_by([apart(bare[n], bare_alone[n]) for n in bare])
    load.with_blocks(every, clients)  # what grows once has grown
    rates = load.rates()
    left, before = load.left(), weights(os.getpid())
    for mark in _hung():
        mark.unlink()
    answers = load.with_blocks(every, clients, _neighbours(load) if control else None)
    seconds, left = load.seconds, left + load.left()
    ends = {
        one.number: ended(one, answers.pop(one.number), alone.get(one.number), allowed)
        for one in every
    }
    after, hung = weights(os.getpid()), len(_hung())
    again = load.with_blocks(answering[:4], 1)
    afterwards = {
        ended(one, again[one.number], alone[one.number], allowed) for one in answering[:4]
    }
    show(0, 0.0, before)
    show(len(every), seconds, after)
    grew = grown(before, after)
    Console(width=100).print(table(title, every, ends))
    print(f"alone: {'every edit gives' if shown else 'NOT every edit gives'} another answer")
    print(said)
    print(
        "requests a second, edited and plain: {:.1f} without any block, {:.1f} with".format(*rates)
    )
    print(f"of all kinds: {len(every) / seconds:.1f};", end=" ")
    print(f"{hung} blocks held the engine for {HANGS:.0f} s each")
    print(f"grown: {grew or 'none'}; blocks left: {left};", end=" ")
    print(f"asked again: {', '.join(sorted(afterwards))}", flush=True)
    wrong = {End.OTHER, End.LOST} & {*ends.values(), *afterwards}
    return bool(wrong or grew or left or not shown)


def _neighbours(load: Load) -> dict[int, Tensor]:
    """For one edited request the direction of another."""
    first, second, *_ = (one.number for one in load.every if one.kind is Kind.EDITED)
    print(f"control: request {first} is sent with the direction of {second}")
    return {first: load.vectors[second]}


def _hung() -> list[Path]:
    """What blocks that hung have left."""
    return [*Path(tempfile.gettempdir()).glob(f"{HUNG}*")]


def main(
    requests: Annotated[int, typer.Option(min=20)] = 200,
    clients: Annotated[int, typer.Option(min=1)] = 16,
    seed: int = 1,
    backend: Annotated[list[str] | None, typer.Option("--backend", "-b")] = None,
    control: Annotated[
        bool, typer.Option(help="Give one request its neighbour's direction.")
    ] = False,
    here: Annotated[bool, typer.Option(hidden=True)] = False,
) -> None:
    """See above."""
    columns = backend or list(COLUMNS)
    if here:
        [column] = columns
        with opened(column, precision=Precision.FLOAT32) as engine:
            every = drawn(requests, seed, len(engine.lm.layers))
            load = Load(engine, FRONTS[column](engine.lm, clients), every, clients)
            title = f"{column}, {clients} clients, seed {seed}"
            raise typer.Exit(int(column_loaded(load, title, control=control)))
    sessions.adopt_orphans()
    wrong = False
    for column in columns:
        asked = [f"--requests={requests}", f"--clients={clients}", f"--seed={seed}"]
        command = [sys.executable, __file__, "--here", "-b", column, *asked]
        child = subprocess.run([*command, *["--control"] * control], check=False)
        print(f"processes left: {(remaining := _remaining()) or 'none'}", flush=True)
        wrong |= bool(child.returncode or remaining)
    raise typer.Exit(int(wrong))


def _remaining() -> list[str]:
    """The processes that do not end by themselves once a column's has."""
    until = time.monotonic() + GONE
    while (pids := sessions.descendants(os.getpid())) and time.monotonic() < until:
        time.sleep(0.2)
    return [f"{pid} {psutil.Process(pid).name()}" for pid in sorted(pids)]


if __name__ == "__main__":
    typer.run(main)
