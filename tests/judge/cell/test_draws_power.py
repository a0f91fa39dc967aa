"""What drawn ids can show, and how rarely correct ones are called wrong (docs/numerics.md); how the
judge goes by it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from conformance.engines import LIBRARIES
from conformance.engines.building.checkpoint_builder import build
from conformance.judge.cell.judge_cell import Judgement
from conformance.judge.cell.measures.draws import (
    RATE,
    Draws,
    at_most,
    distribution,
    evidence,
    likelihood,
    ways,
)
from conformance.spec.inputs import manifest
from conformance.spec.records import Precision, Verdict
from conformance.spec.scenario import discover
from tests.judge.cell import toy

ROOT = Path(__file__).parents[3]
NUMERICS = (ROOT / "docs" / "numerics.md").read_text(encoding="utf-8")
MODELS = ("llama", "qwen2", "gpt2")
MANY = "drawing_first"
#: Scenario, draws, what is asked for and what is drawn with.
ALTERNATIVES = (
    (MANY, 448, Draws(), Draws(0.7)),
    (MANY, 448, Draws(), Draws(1.5)),
    (MANY, 448, Draws(0.7), Draws()),
    (MANY, 64, Draws(top_k=20), Draws()),
    (MANY, 64, Draws(0.7, top_k=20), Draws(0.7)),
    ("drawing", 48, Draws(top_p=0.7), Draws()),
    ("drawing", 48, Draws(0.5, top_p=0.7), Draws(0.5)),
)

#: The grid of `detected`, in units of the natural logarithm. A draw that lowers the evidence by
#: more than the second number is dropped: its sum cannot reach the limit.
STEP, LEAST = 0.01, -20.0


def detected(logits: Tensor, asked: Draws, used: Tensor, count: int) -> float:
    """Return a lower bound on the probability that draws from `used` fail the test of `asked`.

    Many draws from the same logits are independent. Each adds to the evidence for another way of
    sampling an amount that depends on the drawn id; convolution gives the distribution of the sum.
    Amounts are rounded down to a grid and only one other way counts.
    """
    right = at_most(logits, asked)
    inside = float(used[right > 0].sum())
    if inside < 1 - 1e-12 and inside**count < 1e-4:
        return 1 - inside**count  # an id outside is proof by itself
    tried = ways(logits, asked)
    needed = math.log(len(tried) / RATE)
    shown = max(reached(used, right, other, count, needed) for other in tried.values())
    return 1 - inside**count * (1 - shown)


def reached(used: Tensor, right: Tensor, other: Tensor, count: int, needed: float) -> float:
    """Return the probability that one other way's evidence reaches `needed`, given ids inside."""
    inside = right > 0
    chances = used[inside] / used[inside].sum()
    adds = other[inside].log() - right[inside].log()
    counted = adds > LEAST
    if float((chances * adds.clamp_min(LEAST)).sum()) <= 0:
        return 0.0  # this way does not detect it
    places = torch.floor(adds[counted] / STEP).long()
    first = int(places.min())
    mass = torch.zeros(int(places.max()) - first + 1, dtype=torch.float64)
    mass.index_add_(0, places - first, chances[counted])
    length = count * (len(mass) - 1) + 1
    padded = 2 ** math.ceil(math.log2(length))
    total = torch.fft.irfft(torch.fft.rfft(mass, n=padded) ** count, n=padded)[:length]
    beyond = max(0, math.ceil(needed / STEP) - count * first)
    return float(total[beyond:].sum().clamp(0, 1))


def after(model: str, prompt: str, folder: Path) -> Tensor:
    """float64 [vocabulary]: what the reference's definition gives after a prompt, in float32."""
    (entry,) = [each for each in manifest.load(ROOT / "models.yaml").models if each.id == model]
    build(entry.sources[0], entry.architecture, folder, ())
    module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = AutoTokenizer.from_pretrained(folder)(prompt).input_ids
    with torch.no_grad():
        logits: Tensor = module(torch.tensor([ids])).logits[0, -1]
    return logits.double()


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Tensor]:
    """By model and scenario."""
    scenarios = discover(ROOT / "scenarios")
    return {
        (model, name): after(model, scenarios[name].prompts[0], tmp_path_factory.mktemp(model))
        for model in MODELS
        for name in {name for name, *_ in ALTERNATIVES}
    }


def words(draws: Draws) -> str:
    kept = [f"top-p {draws.top_p:g}"] * (draws.top_p < 1) + [f"top-k {draws.top_k}"] * (
        draws.top_k > 0
    )
    return ", ".join([f"temperature {draws.temperature:g}", *kept])


def down(share: float) -> str:
    """Per cent, rounded down: what is promised is a lower bound."""
    return f"{math.floor(share * 1000) / 10:.1f} %"


@pytest.mark.parametrize(("name", "count", "asked", "used"), ALTERNATIVES)
def test_another_way_to_draw_is_seen_as_often_as_is_said(known, name, count, asked, used):
    chances = []
    for model in MODELS:
        logits = known[model, name]
        chances.append(detected(logits, asked, distribution(logits, used), count))
    assert min(chances) >= 0.99
    row = [f"`{name}`", str(count), words(asked), words(used), *map(down, chances)]
    assert f"| {' | '.join(row)} |" in NUMERICS


def test_the_scenario_draws_as_many_and_asks_for_the_same() -> None:
    scenario = discover(ROOT / "scenarios")[MANY]
    source = scenario.path.read_text(encoding="utf-8")
    assert "DRAWS, FEWER = 448, 64" in source
    asked = {
        (case["options"]["temperature"], case["options"]["top_k"])
        for case in scenario.cases.values()
    }
    assert asked >= {
        (each.temperature, each.top_k) for at, _, each, _ in ALTERNATIVES if at == MANY
    }


def test_the_bound_is_one_what_is_drawn_is_seen_at_least_so_often() -> None:
    source = torch.Generator().manual_seed(4)
    logits = 1.6 * torch.randn(64, generator=source).double()
    used = distribution(logits, Draws(0.7))
    bound = detected(logits, Draws(), used, 150)
    trials = 300
    seen = 0
    for _ in range(trials):
        ids = torch.multinomial(used, 150, replacement=True, generator=source).tolist()
        seen += evidence([(logits, token) for token in ids], Draws())[0] >= -math.log(RATE)
    assert 0.2 < bound < 0.995
    assert seen / trials >= bound - 3 * math.sqrt(bound * (1 - bound) / trials)


ASKED = (Draws(), Draws(0.7), Draws(top_p=0.7), Draws(0.5, top_p=0.9), Draws(top_k=20))


@pytest.mark.parametrize("asked", ASKED)
@pytest.mark.parametrize("coarse", [False, True], ids=["float32", "bf16"])
@pytest.mark.parametrize("spread", [0.0, 0.3, 1.6, 6.0])
def test_a_right_engine_adds_no_evidence_on_average(asked, coarse, spread):
    """Exactly, by enumeration; in bf16 many logits are equal."""
    logits = spread * torch.randn(512, generator=torch.Generator().manual_seed(1))
    logits = logits.bfloat16() if coarse else logits
    right = at_most(logits, asked)
    for engine in (distribution(logits, asked), first_come(logits, asked)):
        assert (engine <= right).all()
        for name, other in ways(logits, asked).items():
            drawn = engine > 0
            assert float((engine * other / right)[drawn].sum()) <= 1, name


def first_come(logits: Tensor, asked: Draws) -> Tensor:
    """As engines do it: in float32, and of equally likely ids one after the other is kept."""
    chances = torch.softmax(logits.float() / asked.temperature, dim=-1)
    ordered, places = chances.sort(descending=True, stable=True)
    kept = ordered.cumsum(0) - ordered <= asked.top_p
    if asked.top_k:
        kept[asked.top_k :] = False
    chances = torch.zeros_like(chances).index_put((places[kept],), ordered[kept]).double()
    return chances / chances.sum()


@pytest.mark.parametrize("asked", ASKED)
def test_correct_draws_are_called_wrong_as_rarely_as_is_said(asked: Draws) -> None:
    """At a rate that a simulation can see: one in twenty."""
    source = torch.Generator().manual_seed(2)
    logits = 1.6 * torch.randn(128, generator=source)
    chances = distribution(logits, asked)
    trials, found = 400, 0
    for _ in range(trials):
        ids = torch.multinomial(chances, 48, replacement=True, generator=source).tolist()
        found += evidence([(logits, token) for token in ids], asked)[0] >= math.log(20)
    assert found <= trials / 20


def test_one_id_outside_of_what_is_kept_is_enough() -> None:
    logits = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05]))
    for asked in (Draws(top_p=0.7), Draws(top_k=2)):
        assert evidence([(logits, 0), (logits, 1)], asked)[0] < 0
        assert evidence([(logits, 0), (logits, 2)], asked)[0] == math.inf


def test_one_matrix_has_no_more_drawn_cells_than_the_rate_allows_for() -> None:
    """Every backend on every model, though many run on a few. Other libraries draw nothing: they
    run programs, whose tokens are greedy.
    """
    manifested = manifest.load(ROOT / "models.yaml")
    scenarios = discover(ROOT / "scenarios")
    few = ("drawing", MANY, "samples")
    scheduled = [model for model in manifested.models if "scheduling" in model.tiers]
    cells = len(manifested.models) + len(scheduled) * sum(len(scenarios[n].cases) for n in few)
    drawn = [scenarios[name] for name in (*few, "drawing_first", "sampling")]
    assert not any(each.form(4, case) for each in drawn for case in each.cases)
    backends = [each for each in manifested.backends if each.engine not in LIBRARIES]
    assert cells * len(backends) * len(Precision) * RATE <= 1e-3


#: Nearly every id is as likely as another.
WIDE = Draws(temperature=50.0)


def test_padding_the_largest_and_even_draws_are_not_likely() -> None:
    source = torch.Generator().manual_seed(0)
    logits = [1.6 * torch.randn(50, generator=source) for _ in range(64)]
    largest = [(row, int(row.argmax())) for row in logits]
    evenly = [(row, at % 50) for at, row in enumerate(logits)]
    padding = [(row, 0) for row in logits]
    for wrong in (largest, evenly, padding):
        found = likelihood(wrong, Draws())
        assert found is not None and not found.holds, found
    assert likelihood([], Draws()) is None


def test_of_equally_likely_ids_at_a_top_ps_end_any_may_be_drawn() -> None:
    logits = torch.log(torch.tensor([0.5, 0.25, 0.25]))
    kept = distribution(logits, Draws(top_p=0.6))
    assert kept.tolist() == pytest.approx([0.5, 0.25, 0.25])
    assert distribution(logits, Draws(top_p=0.4)).tolist() == pytest.approx([1.0, 0.0, 0.0])


def cell(
    ids: Sequence[int], *, along: bool
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """What a column drew, and the reference in float32: along these ids, or its likeliest."""
    source = torch.Generator().manual_seed(5)
    logits = [2 * torch.randn(60, generator=source) for _ in ids]
    rows = {f"p0/s{step}/logits": row for step, row in enumerate(logits)}
    own = {f"p0/s{step}/sampled": torch.tensor([token]) for step, token in enumerate(ids)}
    greedy = {f"p0/s{step}/sampled": row.argmax().reshape(1) for step, row in enumerate(logits)}
    known = {**rows, **(own if along else greedy)}
    return {**rows, **own}, {"truth": known, "float32_a": known, "float32_b": known}


def judged(ids: Sequence[int], *, along: bool, draws: Draws | None = WIDE) -> Judgement:
    observed, known = cell(ids, along=along)
    return toy.judge(observed, known, precision=Precision.FLOAT32, draws=draws)


def likeliest(count: int) -> list[int]:
    _, known = cell([0] * count, along=False)
    return [int(known["truth"][f"p0/s{step}/sampled"]) for step in range(count)]


def test_ids_along_which_the_reference_was_not_run_are_unknown_and_not_wrong() -> None:
    ids = [*likeliest(2), 7, 8]
    lost = judged(ids, along=False)
    assert (lost.verdict, lost.harness) == (Verdict.UNKNOWN, True)
    assert "not run along the candidate's token of step 2" in lost.reason
    assert judged(ids, along=True).verdict is Verdict.EXACT


def test_the_last_id_that_was_drawn_is_nobodys_context() -> None:
    ids = [*likeliest(3), 7]
    assert judged(ids, along=False).verdict.passes


@pytest.mark.parametrize(("again", "verdict"), [(7, Verdict.MATCH), (8, Verdict.WRONG)])
def test_what_repeats_a_drawn_id_is_held_to_that_id(again: int, verdict: Verdict) -> None:
    ids = [*likeliest(3), 7]
    observed, known = cell(ids, along=False)
    for values in (observed, *known.values()):
        drawn = [name for name in values if name.endswith("sampled")]
        values.update({name.replace("sampled", "again"): values[name] for name in drawn})
    observed["p0/s3/again"] = torch.tensor([again])
    found = toy.judge(observed, known, precision=Precision.FLOAT32, draws=WIDE)
    assert found.verdict is verdict


def test_an_id_that_is_laid_down_or_none_at_all_is_wrong() -> None:
    assert judged([*likeliest(3), 7], along=False, draws=None).verdict is Verdict.WRONG
    assert judged([*likeliest(3), 60], along=False).verdict is Verdict.WRONG
