"""The small judge says what the judge says, on the same observations."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from torch import Tensor

from conformance.judge.cell import judge_cell
from conformance.records import Site, Thresholds
from conformance.repro import verdict

LIMITS = Thresholds()
IDS = ((1, 2, 3, 4, 5), (1, 2, 3, 4, 5, 6, 7))
Values = dict[str, Tensor]


def noisy(values: Mapping[str, Tensor], seed: int, size: float = 0.01) -> Values:
    """An honest bf16 run: the truth with noise in proportion to each row."""
    dice = torch.Generator().manual_seed(seed)
    found = {}
    for name, value in values.items():
        if not value.is_floating_point():
            found[name] = value
            continue
        scale = value.norm(dim=-1, keepdim=True) / value.shape[-1] ** 0.5
        noise = size * scale * torch.randn(value.shape, generator=dice)
        found[name] = (value + noise).bfloat16()
    return found


def truth_of(*, twin: bool) -> Values:
    """Streams of three layers and logits of two prompts; a write of half a length after layer 1."""
    dice = torch.Generator().manual_seed(0)
    found: Values = {}
    vector = torch.randn(64, generator=dice)
    for run in ("clean", "edited") if twin else ("",):
        own = torch.Generator().manual_seed(5)
        for prompt, ids in enumerate(IDS):
            stream = torch.randn(len(ids), 64, generator=own)
            for layer in range(3):
                stream = stream + torch.randn(len(ids), 64, generator=own)
                if run == "edited" and layer == 1:
                    stream = stream + 0.5 * vector
                found[str(Site("stream", prompt, layer=layer, run=run))] = stream
            logits = torch.randn(50, generator=own) + (stream[-1, :50] if run else 0)
            found[str(Site("logits", prompt, run=run))] = logits
            found[str(Site("tokens", prompt, run=run))] = logits.argmax().reshape(1)
    return found


def of(values: Values, word: str) -> list[str]:
    return [name for name in values if word in name]


def dropped(values: Values) -> None:
    for name in of(values, "edited/"):
        values[name] = values[name.replace("edited", "clean")].clone()


def twice(values: Values) -> None:
    for name in of(values, "edited/"):
        if values[name].is_floating_point():
            clean = values[name.replace("edited", "clean")]
            values[name] = (2 * values[name].float() - clean.float()).bfloat16()


def one_prompt(values: Values) -> None:
    for name in of(values, "edited/p1"):
        values[name] = values[name.replace("edited", "clean")].clone()


def leaking(values: Values) -> None:
    values["edited/p0/s0/stream.0"] = values["edited/p0/s0/stream.0"] * 1.5


def swapped(values: Values) -> None:
    for name in of(values, "p0/s0/logits"):
        values[name] = values[name.replace("p0", "p1")]


def same_layers(values: Values) -> None:
    for layer in (0, 1):
        for prompt in (0, 1):
            values[f"p{prompt}/s0/stream.{layer}"] = values[f"p{prompt}/s0/stream.2"]


def coarse(values: Values) -> None:
    values |= noisy(
        {k: v.float() if v.is_floating_point() else v for k, v in values.items()}, 9, 0.04
    )


def other_token(values: Values) -> None:
    for name in of(values, "tokens"):
        values[name] = (values[name] + 7) % 50


CHANGES: list[tuple[bool, Callable[[Values], None]]] = [
    (False, lambda values: None),
    (True, lambda values: None),
    (True, dropped),
    (True, twice),
    (True, one_prompt),
    (True, leaking),
    (False, swapped),
    (False, same_layers),
    (False, coarse),
    (False, other_token),
    (False, lambda v: v.__delitem__("p0/s0/stream.1")),
    (False, lambda v: v.update({"p0/s0/stream.1": v["p0/s0/stream.1"][1:]})),
    (False, lambda v: v.update({"p0/s0/stream.1": v["p0/s0/stream.1"].float()})),
    (False, lambda v: v.update({"p0/s0/stream.1": v["p0/s0/stream.1"] * float("nan")})),
    (False, lambda v: v.update({"p0/s0/stream.1": v["p0/s0/stream.1"] * 1.2})),
]


@pytest.mark.parametrize(("twin", "change"), CHANGES)
def test_both_judges_say_the_same(twin: bool, change: Callable[[Values], None]) -> None:
    truth = truth_of(twin=twin)
    members = [noisy(truth, seed) for seed in range(1, 7)]
    mine = noisy(truth, 99)
    change(mine)
    reference = {"truth": truth} | {f"m{i}": member for i, member in enumerate(members)}
    judged = judge_cell(
        mine, reference, twin=twin, equal=(), prompt_ids=IDS, truth_ids=IDS, thresholds=LIMITS
    )

    def by_site(values: Values) -> dict[Site, Tensor]:
        return {Site.parse(name): value for name, value in values.items()}

    rules = [verdict.choices, *([verdict.effects] if twin else [])]
    found = verdict.verdict_on(
        by_site(mine), by_site(truth), [*map(by_site, members)], LIMITS, rules
    )
    wanted = "match" if judged.verdict.passes else judged.verdict.value
    assert found[0][0] == wanted, (judged.reason, found[:3])


def test_a_rule_that_needs_no_tolerance_is_checked() -> None:
    truth = {Site("a"): torch.ones(2, 4), Site("b"): torch.ones(2, 4)}
    mine = {Site("a"): torch.ones(2, 4).bfloat16(), Site("b"): 1.01 * torch.ones(2, 4).bfloat16()}
    members = [{site: value.bfloat16() for site, value in truth.items()}] * 4
    rules = [verdict.equalities([("a", "b")])]
    found = verdict.verdict_on(mine, truth, members, LIMITS, rules)
    assert found[0][0] == "wrong"
    assert "a ≡ b" in "; ".join(words for _, words in found)
