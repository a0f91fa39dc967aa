"""What the plots show: the worst of every place survives, whatever is merged."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.report import figures
from conformance.spec.records import Group, Judged, Results, Verdict


@given(st.lists(st.floats(min_value=0, max_value=1e6)), st.integers(1, 50))
def test_merging_keeps_the_worst(ratios: list[float], size: int) -> None:
    merged = figures.keep_worst(ratios, size)
    assert len(merged) == math.ceil(len(ratios) / size)
    if ratios:
        assert max(merged) == figures.short(max(ratios), digits=2)  # type: ignore[type-var]


@given(st.lists(st.floats(0, 10), min_size=1), st.data())
def test_merging_never_hides_a_nan(ratios: list[float], data: st.DataObject) -> None:
    ratios[data.draw(st.integers(0, len(ratios) - 1))] = math.nan
    assert "NaN" in figures.keep_worst(ratios, len(ratios))


@given(st.floats())
def test_short_numbers_are_json_and_close(value: float) -> None:
    short = figures.short(value)
    if math.isfinite(value):
        assert short == pytest.approx(value, rel=0.005)
    else:
        assert isinstance(short, str)
        assert math.isnan(value) == (short == "NaN")


@pytest.mark.parametrize(
    ("said", "boundaries"),
    [([[0, 3], [3, 5], [5, 6]], (3, 5)), *((said, ()) for said in ("two", 7, [[0]], [["a", "b"]]))],
)
def test_the_stage_boundary_is_the_first_layer_of_every_later_stage(
    said: object, boundaries: tuple[int, ...]
) -> None:
    assert figures.boundaries(Group("m", "b", identity={"stages": said})) == boundaries
    assert figures.boundaries(None) == figures.boundaries(Group("m", "b")) == ()


def test_series_are_one_line_for_each_run_and_prompt_the_worst_first(results: Results) -> None:
    cell = next(cell for cell in results.cells if cell.verdict is Verdict.WRONG)
    lines = figures.series(cell)
    runs = itertools.product(("clean", "edited"), (0, 1))
    assert sorted((line["run"], line["prompt"]) for line in lines) == list(runs)
    assert lines[0]["worst"] == figures.ratio(cell.worst_ratio)
    layers = [point[0] for point in lines[0]["layers"]]
    assert layers == sorted(layers)


def test_steps_follow_each_other_along_the_tokens(results: Results) -> None:
    """Three tokens of the prompt, then one a step; logits are of the last token of each."""

    def seen(name: str, *ratios: float, verdict: Verdict = Verdict.MATCH) -> Judged:
        return Judged(name, verdict, q_max=max(ratios), ratios=ratios)

    observations = (
        seen("p0/s0/stream.1", 0.1, 0.2, 0.3),
        seen("p0/s1/stream.1", 0.4),
        seen("p0/s2/stream.1", 5.0, verdict=Verdict.WRONG),
        seen("p0/s0/logits", 0.6),
        seen("p0/s2/logits", 0.7),
    )
    (line,) = figures.series(replace(results.cells[0], observations=observations))
    assert line["length"] == 3
    assert line["heat"] == [
        [1, [0.1, 0.2, 0.3, 0.4, 5.0]],
        ["logits", [None, None, 0.6, None, 0.7]],
    ]
    assert line["layers"] == [[1, 2, "wrong"]]
    assert line["worst"] == 5.0


def test_two_kinds_of_observations_of_one_layer_are_told_apart(results: Results) -> None:
    observations = tuple(
        Judged(f"p0/s0/{name}.2", Verdict.MATCH, q_max=1.0, ratios=(1.0,))
        for name in ("stream", "mlp")
    )
    (line,) = figures.series(replace(results.cells[0], observations=observations))
    assert [name for name, _ in line["heat"]] == ["mlp.2", "stream.2"]
    no_site = replace(results.cells[0], observations=(Judged("<b>", Verdict.WRONG, q_max=3.0),))
    assert figures.series(no_site) == []


def test_long_prompts_are_merged_to_what_a_screen_shows(results: Results) -> None:
    ratios = tuple(float(token == 1234) for token in range(1500))
    judged = Judged("p0/s0/stream.1", Verdict.MATCH, q_max=1.0, ratios=ratios)
    line = figures.series(replace(results.cells[0], observations=(judged,)))[0]
    ((layer, heat),) = line["heat"]
    assert layer == 1
    assert len(heat) <= figures.COLUMNS
    assert heat[1234 // line["bin"]] == 1.0
    assert sum(heat) == 1.0


def test_gains_are_sorted_by_their_distance_from_one(results: Results) -> None:
    cell = next(cell for cell in results.cells if cell.verdict is Verdict.MISSCALED)
    gains = figures.gains(cell)
    distances = [cell.observations[index].gain.off for index, _ in gains]
    assert distances == sorted(distances, reverse=True)
    assert len(distances) == sum(judged.gain is not None for judged in cell.observations)
    assert gains[0][1][0] == "NaN"
