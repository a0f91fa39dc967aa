"""Faults of known kinds are named; what fits two kinds is said to; what fits none is not named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor

from conformance.judge.cell.judgement import Judgement
from conformance.spec.records import BF16_LIMITS, Site, Verdict
from tests.judge.cell import toy

BF16 = torch.bfloat16
Fault = Callable[[toy.Observations], toy.Observations]


@cache
def reference() -> dict[str, toy.Observations]:
    return toy.reference(toy.observe) | {"aux": toy.auxiliary()}


@cache
def engine() -> toy.Observations:
    return toy.observe(BF16, toy.CANDIDATE)


@cache
def branches() -> toy.Observations:
    return {site: value.bfloat16() for site, value in toy.auxiliary().items()}


def each(change: Callable[[Site, Tensor], Tensor], name: str = "stream") -> Fault:
    """A fault in every observation of a name."""

    def fault(run: toy.Observations) -> toy.Observations:
        return {
            site: change(Site.parse(site), value) if Site.parse(site).name == name else value
            for site, value in run.items()
        }

    return fault


def of(site: Site, **fields: object) -> str:
    merged = {name: getattr(site, name) for name in ("name", "prompt", "step", "layer", "run")}
    return str(Site(**(merged | fields)))


def layer_off(by: int) -> Fault:
    def change(site: Site, value: Tensor) -> Tensor:
        return engine().get(of(site, layer=(site.layer or 0) + by), value)

    return each(change)


def branch(name: str, sign: float = 0.0) -> Fault:
    """The branch alone (0), the stream without it (-1), the stream with it twice (1)."""

    def change(site: Site, value: Tensor) -> Tensor:
        part = branches()[of(site, name=name)]
        return part if sign == 0 else value + sign * part

    return each(change)


def swap_prompts(site: Site, value: Tensor) -> Tensor:
    other = engine()[of(site, prompt=1 - site.prompt)]
    return torch.cat([other, value[len(other) :]])[: len(value)]


def flat_span(shift: int) -> Fault:
    def change(site: Site, value: Tensor) -> Tensor:
        batch = torch.cat([engine()[of(site, prompt=prompt)] for prompt in (0, 1)])
        return batch.roll(-shift, 0)[: len(value)] if site.prompt == 0 else value

    return each(change)


def shuffled(site: Site, value: Tensor) -> Tensor:
    return value[torch.randperm(len(value), generator=torch.Generator().manual_seed(4))]


def one_token(site: Site, value: Tensor) -> Tensor:
    if site.layer != 3:
        return value
    value = value.clone()
    value[2] = value[3]
    return value


NAMED: list[tuple[str, Fault, str, str]] = [
    ("layer above", layer_off(1), "layer+1", "holds the value of the next layer"),
    ("layer below", layer_off(-1), "layer-1", "holds the value of the previous layer"),
    ("half stream", branch("mlp"), "mlp-only", "holds the MLP output without the residual"),
    ("residual", branch("mlp", -1), "mlp-missing", "the residual without the MLP output"),
    ("mlp twice", branch("mlp", 1), "mlp-twice", "MLP output counted twice"),
    ("attention", branch("attention"), "attention-only", "the attention output without"),
    ("normed", branch("normed"), "norm-applied", "the stream after the next norm"),
    ("zeros", each(lambda _, v: v * 0), "zero", "holds zero"),
    ("twice", each(lambda _, v: v * 2), "doubled", "twice the right value"),
    ("half", each(lambda _, v: v * 0.5), "halved", "half the right value"),
    ("scale", each(lambda _, v: v * 8), "embedding-scale", "embedding's scale once more"),
    ("unscaled", each(lambda _, v: v / 8), "embedding-scale", "without the embedding's scale"),
    ("factor", each(lambda _, v: v * 3), "scaled", "3 times the right value"),
    ("sign", each(lambda _, v: -v), "sign", "opposite sign"),
    ("token later", each(lambda _, v: v.roll(-1, 0)), "token+1", "the row of the next token"),
    ("token before", each(lambda _, v: torch.cat([v[:1], v[:-1]])), "token-1",
     "the row of the previous token"),
    ("span", flat_span(3), "span+3", "rows of the batch 3 further on"),
    ("other prompt", each(swap_prompts), "other-prompt", "rows"),
    ("order", each(shuffled), "permuted", "rows in another order"),
    ("flat rows", each(lambda _, v: v[:1].expand_as(v)), "first-row", "token 0's row at every"),
    ("last row", each(lambda _, v: v[-1:].expand_as(v)), "last-row", "row at every token"),
    ("one token", each(one_token), "token+1", "only token 2 of prompt 0, token 2 of prompt 1"),
    ("positions", each(lambda _, v: torch.arange(len(v)).bfloat16()[:, None].expand_as(v)),
     "positions", "token positions instead of activations"),
    ("columns", each(lambda _, v: torch.cat(v.chunk(2, 1)[::-1], 1)), "columns", "halves"),
    ("logit scale", each(lambda _, v: v * 0.25, "logits"), "scaled", "logits holds 0.25 times"),
    ("soft cap", each(lambda _, v: 15 * torch.tanh(v.float() * 1 / 15), "logits"), "softcap",
     "a soft cap of 15 once more"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "fault", "kind", "words"), NAMED)
def test_a_known_fault_is_named(name: str, fault: Fault, kind: str, words: str) -> None:
    found = toy.judge(fault(engine()), reference())
    assert found.verdict.fails
    assert found.explanations == (kind,), found.diagnosis
    assert words in found.diagnosis


def test_an_unknown_fault_is_not_named() -> None:
    def noise(site: Site, value: Tensor) -> Tensor:
        draw = torch.Generator().manual_seed(site.layer or 0)
        return (torch.randn(value.shape, generator=draw) * value.std()).bfloat16()

    found = toy.judge(each(noise)(engine()), reference())
    assert (
        found.explanations == () and "no fault of the catalogue explains stream" in found.diagnosis
    )


def test_what_two_faults_explain_is_a_tie() -> None:
    """Two branches that differ by no more than the noise of what was read."""

    def roughly(site: Site, value: Tensor) -> Tensor:
        draw = torch.Generator().manual_seed(site.layer or 0)
        noise = torch.randn(value.shape, generator=draw) * value.float().median().abs()
        size = 0.006 * value.float()[1:].norm(dim=-1).mean() / noise.norm(dim=-1, keepdim=True)
        found: Tensor = branches()[of(site, name="mlp")].float() + noise * size
        return found.bfloat16()

    run = each(roughly)(engine())
    aux = toy.auxiliary()
    double = {site.replace("mlp", "twin"): value for site, value in aux.items() if "mlp" in site}
    tied = toy.reference(toy.observe) | {"aux": double}
    assert toy.judge(run, tied).explanations == ("twin",)
    off = {site: value * 1.03 for site, value in aux.items() if "mlp" in site}
    found = toy.judge(run, tied | {"aux": double | off})
    assert set(found.explanations) == {"twin", "mlp-only"}
    assert "both look the same here" in found.diagnosis


def test_what_the_reference_records_of_another_layer_is_not_this_layers() -> None:
    aux = toy.auxiliary()
    twins = {site.replace("mlp", "twin"): value for site, value in aux.items() if "mlp" in site}
    run = dict(engine()) | {"p0/s0/stream.3": branches()["p0/s0/mlp.2"]}
    found = toy.judge(run, toy.reference(toy.observe) | {"aux": twins})
    assert found.verdict is Verdict.WRONG and found.explanations == ()


def test_two_swapped_rows_are_no_shift_and_a_row_twice_is_no_other_order() -> None:
    swapped, twice = (
        toy.judge(each(lambda _, v, at=at: v[[*at, *range(2, len(v))]])(engine()), reference())
        for at in ((1, 0), (1, 1))
    )
    assert swapped.explanations == ("permuted",)
    assert "only tokens 0-1 of prompt 0" in swapped.diagnosis
    assert "permuted" not in twice.explanations


def test_what_explains_a_few_rows_of_many_is_not_the_explanation() -> None:
    def run(dtype: torch.dtype, parts: int) -> toy.Observations:
        return toy.observe(dtype, parts, prompts=((5, 6, 7), toy.IDS[1]))

    off = run(BF16, toy.CANDIDATE)
    draw = torch.Generator().manual_seed(0)
    value = torch.randn(off["p1/s0/stream.3"].shape, generator=draw).bfloat16()
    value[:3] = off["p0/s0/stream.3"]
    found = toy.judge(off | {"p1/s0/stream.3": value}, toy.reference(run))
    assert found.verdict is Verdict.WRONG and found.explanations == ()


def test_an_overwritten_value_is_named_by_where_it_comes_from() -> None:
    last = each(lambda site, _: engine()[of(site, layer=toy.LAYERS - 1)])(engine())
    found = toy.judge(last, reference())
    assert found.verdict is Verdict.ALIASED
    assert "stream after layers 0-3 holds the value of layer 4" in found.diagnosis


def test_a_prediction_that_agrees_with_everything_explains_nothing() -> None:
    """One of the reference's rows is so uncertain that any row is within its noise."""
    uncertain = {name: dict(values) for name, values in reference().items()}
    for number, name in enumerate(toy.BASELINE_RUNS):
        row = uncertain[name]["p1/s0/stream.3"].clone()
        row[0, 8:] += 30.0 * (-1) ** number
        uncertain[name]["p1/s0/stream.3"] = row
    run = dict(engine())
    value = run["p0/s0/stream.3"].clone()
    value[-1] += 0.3 * value[-1].flip(0)
    found = toy.judge(run | {"p0/s0/stream.3": value}, uncertain)
    assert found.verdict is Verdict.WRONG and found.explanations == ()


def test_of_many_observations_all_are_described() -> None:
    def wide(dtype: torch.dtype, parts: int) -> toy.Observations:
        prompts = [[n + 1, *ids] for n in range(4) for ids in toy.IDS]
        return toy.observe(dtype, parts, prompts=prompts)

    run = each(lambda _, v: v * 2)(wide(BF16, toy.CANDIDATE))
    found = toy.judge(run, toy.reference(wide))
    assert found.diagnosis.startswith("stream after layers 0-4 holds twice the right value")
    two = each(lambda site, v: v * (0 if site.prompt in {4, 5} else 2))(wide(BF16, toy.CANDIDATE))
    found = toy.judge(two, toy.reference(wide))
    assert "of prompts 0-3, 6-7 holds twice the right value" in found.diagnosis
    assert "otherwise explained: stream after layers 0-4 of prompts 4-5" in found.diagnosis


def test_baseline_runs_have_no_diagnosis() -> None:
    found = toy.judge(engine(), reference())
    assert found.verdict is Verdict.MATCH and found.diagnosis == "" and found.explanations == ()


def test_a_value_only_read_wrongly_is_told_from_a_wrong_computation() -> None:
    read = dict(engine()) | {"p0/s0/stream.2": engine()["p0/s0/stream.1"]}
    found = toy.judge(read, reference())
    assert "the first difference is after layer 2; the logits agree" in found.diagnosis
    assert "of prompt 0" in found.diagnosis and found.explanations == ("layer-1",)
    wrong = toy.observe(BF16, toy.CANDIDATE, edits={2: lambda stream: stream * 1.5})
    found = toy.judge(wrong, reference())
    assert (
        "the first difference is after layer 2, and everything after it differs too"
        in found.diagnosis
    )


def test_a_small_error_that_a_known_fault_explains_is_no_drift() -> None:
    scaled = each(lambda _, v: v * 1.02)(engine())
    found = toy.judge(scaled, reference(), limits=replace(BF16_LIMITS, k_med=1.25, k_max=1.8))
    assert found.verdict is Verdict.WRONG and "scaled" in found.explanations, found.reason


def test_a_single_number_is_no_multiple_of_the_right_one() -> None:
    """A factor fitted to one number explains whatever it is."""

    def with_number(run: toy.Observations, times: float = 1.0) -> toy.Observations:
        return run | {"p0/s0/chosen": times * run["p0/s0/logits"].flatten()[:1]}

    members = {
        name: run if name == "aux" else with_number(run) for name, run in reference().items()
    }
    found = toy.judge(with_number(engine(), 1.2), members)
    assert found.verdict is Verdict.DRIFT, found.reason
    assert not found.explanations


def test_rows_that_two_tokens_share_are_in_no_other_order() -> None:
    twice = each(lambda _, v: v[[1, 1, *range(2, len(v))]])(engine())
    assert "permuted" not in toy.judge(twice, reference()).explanations


@pytest.mark.parametrize("everywhere", [False, True])
def test_in_a_mixture_another_tokens_row_may_be_another_experts(everywhere: bool) -> None:
    """Where all tokens' rows are alike but for an expert, one that takes another expert has the row
    of a token that took it, too.
    """
    drawn = torch.Generator().manual_seed(0)
    base, expert = torch.randn(64, generator=drawn), 0.2 * torch.randn(64, generator=drawn)
    reference = base + torch.tensor([0, 0, 0, 1, 0, 1, 0, 0])[:, None] * expert

    def noisy(rows: Tensor) -> Tensor:
        return (rows + 0.01 * torch.randn(8, 64, generator=drawn)).bfloat16()

    members = {name: {"p0/s0/stream.1": noisy(reference)} for name in toy.BASELINE_RUNS}
    mine = reference.clone()
    mine[1 if not everywhere else slice(None)] = reference[3]
    found = toy.judge(
        {"p0/s0/stream.1": noisy(mine)},
        {"truth": {"p0/s0/stream.1": reference}, **members},
        reading={"mixture": True},
    )
    assert found.verdict is (Verdict.WRONG if everywhere else Verdict.DRIFT), found.reason


@cache
def steered() -> dict[str, toy.Observations]:
    return toy.reference(lambda d, p: toy.edited(d, p, {1: toy.add(toy.vector(0.5))}))


def written(edit: toy.Edit, at: int = 1) -> Judgement:
    return toy.judge(toy.edited(BF16, toy.CANDIDATE, {at: edit}), steered(), has_edit=True)


@pytest.mark.parametrize(
    ("times", "kind", "words"),
    [
        (0.0, "zero", "the effect of the write on stream after layers 1-4"),
        (2.0, "doubled", "is twice the right value"),
        (-1.0, "sign", "opposite sign"),
        (0.5, "halved", "half the right value"),
    ],
)
def test_the_size_of_a_write_is_named(times: float, kind: str, words: str) -> None:
    found = written(toy.add(toy.vector(0.5), times=times))
    assert found.explanations[0] == kind and words in found.diagnosis, found.diagnosis


def test_a_write_at_the_wrong_layer_is_named() -> None:
    found = written(toy.add(toy.vector(0.5)), at=0)
    assert found.verdict is Verdict.CONTAMINATED and "layer 0" in found.diagnosis
    late = written(toy.add(toy.vector(0.5)), at=2)
    assert late.verdict is Verdict.PARTIAL and "zero" in late.explanations


def test_half_an_ablation_leaves_the_residual_of_the_clean_run() -> None:
    def run(dtype: torch.dtype, parts: int) -> toy.Observations:
        return toy.edited(dtype, parts, {3: toy.zero}, 3)

    aux = toy.auxiliary(run="clean")
    half = run(BF16, toy.CANDIDATE)
    for prompt in (0, 1):
        stream = half[f"clean/p{prompt}/s0/stream.3"] - aux[f"clean/p{prompt}/s0/mlp.3"]
        half[f"edited/p{prompt}/s0/stream.3"] = stream.bfloat16()
    found = toy.judge(half, toy.reference(run) | {"aux": aux}, has_edit=True)
    assert found.verdict in {Verdict.MISSCALED, Verdict.PARTIAL}
    assert "the residual without the MLP output of the clean run" in found.diagnosis, (
        found.diagnosis
    )


def test_a_foreign_ingredient_is_named() -> None:
    def run(dtype: torch.dtype, parts: int) -> toy.Observations:
        seen = toy.observe(dtype, parts, prompts=(toy.IDS[1], toy.IDS[1][::-1]))
        found: toy.Observations = {}
        for prompt in (0, 1):
            early, late = (seen[f"p{prompt}/s0/stream.{layer}"] for layer in (0, 3))
            found |= {f"p{prompt}/s0/early": early, f"p{prompt}/s0/difference": late - early}
        return found

    candidate = run(BF16, toy.CANDIDATE)
    own, foreign = candidate["p0/s0/early"], candidate["p1/s0/early"]
    candidate["p0/s0/difference"] = candidate["p0/s0/difference"] + own - foreign
    found = toy.judge(candidate, toy.reference(run))
    assert found.explanations == ("ingredient:early",), found.diagnosis
    assert "'early' of prompt 1" in found.diagnosis


def test_a_stale_step_is_named() -> None:
    forced = toy.tokens_of(toy.observe(BF16, toy.CANDIDATE, steps=4))
    reference = toy.reference(lambda d, p: toy.observe(d, p, steps=4, forced=forced))
    run = toy.observe(BF16, toy.CANDIDATE, steps=4)
    stale = dict(run)
    for step in (2, 3):
        for name in ("logits", "stream.3"):
            stale[f"p1/s{step}/{name}"] = run[f"p1/s{step - 1}/{name}"]
    found = toy.judge(stale, reference)
    assert found.explanations == ("step-1",) and "the value of the previous step" in found.diagnosis
    assert "prompt 1" in found.diagnosis and "steps 2-3" in found.diagnosis


def test_what_is_missing_is_summarised() -> None:
    lost = {site: value for site, value in engine().items() if not site.endswith((".0", ".1"))}
    assert toy.judge(lost, reference()).diagnosis == "concerns stream after layers 0-1"


def other_shape(change: Callable[[Tensor], Tensor]) -> Fault:
    def fault(run: toy.Observations) -> toy.Observations:
        return run | {
            site: change(value) for site, value in run.items() if site.startswith("p1/s0/stream")
        }

    return fault


BATCH = torch.cat([engine()[f"p{prompt}/s0/stream.3"] for prompt in (0, 1)])

SHAPES: list[tuple[Callable[[Tensor], Tensor], str, str]] = [
    (lambda v: v[3:], "first-rows-missing", "of prompt 1 lacks the rows of tokens 0-2"),
    (lambda v: v[:-1], "rows-missing", "lacks the row of tokens 8"),
    (lambda v: v[:1], "single-row", "holds token 0's row alone"),
    (lambda v: v[4], "single-row", "holds token 4's row alone"),
    (lambda v: v[None], "extra-dimension", "in shape [1, 9, 64]"),
    (lambda v: torch.cat([v, v[-1:]]), "rows-repeated", "holds tokens 8 more than once"),
    (lambda v: torch.cat([BATCH, BATCH]), "rows-of-batch", "holds rows of prompts 0-1"),
]


@pytest.mark.parametrize(("change", "kind", "words"), SHAPES)
def test_rows_of_another_shape_are_found(change, kind, words):
    found = toy.judge(other_shape(change)(engine()), reference())
    assert found.verdict is Verdict.STRUCTURE
    assert found.explanations == (kind,) and words in found.diagnosis, found.diagnosis


def test_rows_that_are_nobodys_are_not_found() -> None:
    found = toy.judge(other_shape(lambda v: v[1:] * 3)(engine()), reference())
    assert found.explanations == () and found.diagnosis.startswith("concerns stream")


def test_a_value_that_has_two_names_is_told_by_the_observations_own() -> None:
    """As where the engine itself hands out what was read."""

    def twice(run: toy.Observations) -> toy.Observations:
        streams = {site: value for site, value in run.items() if "stream" in site}
        return {site.replace("stream", "extracted"): streams[site] for site in streams} | run

    known = {name: run if name == "aux" else twice(dict(run)) for name, run in reference().items()}
    off = twice(dict(engine()))
    off[str(Site("stream", layer=2))] = off[str(Site("stream", layer=1))]
    judged = toy.judge(off, known)
    assert judged.verdict is Verdict.WRONG
    assert "the value of the previous layer" in judged.diagnosis
    assert "extracted" not in judged.diagnosis
