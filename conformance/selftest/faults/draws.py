"""Faults of sampling: the engine receives other sampling parameters than the trace requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from conformance.records import Side, Verdict
from conformance.selftest.fault import Fault, Moment, Point

#: Many draws at the usual temperature and at a lower one; from all ids, and from the likeliest.
USUAL, COOL = "drawing_first.1.0-0", "drawing_first.0.7-0"
FEW = ("drawing_first.1.0-20", "drawing_first.0.7-20")


def colder(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    return how | {"temperature": how["temperature"] * 0.7}


def hotter(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    return how | {"temperature": how["temperature"] * 1.5}


def usual_temperature(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    return how | {"temperature": 1.0}


def no_top_p(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    return how | {"top_p": 1.0}


def no_top_k(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    return how | {"top_k": 0}


def _fault(name: str, act: Callable[..., Any], *cases: str, summary: str) -> Fault:
    return Fault(
        id=name,
        summary=summary,
        act=act,
        point=Point.ASKED,
        cases=cases,
        side=Side.NNSIGHT,
        verdicts=frozenset({Verdict.WRONG}),
    )


FAULTS = (
    _fault(
        "temperature-lost",
        usual_temperature,
        "drawing.0.5-1.0",
        COOL,
        summary="Ids are drawn at temperature 1, whatever was asked for.",
    ),
    _fault(
        "temperature-low",
        colder,
        USUAL,
        summary="Ids are drawn at 0.7 of the temperature that was asked for.",
    ),
    _fault(
        "temperature-high",
        hotter,
        USUAL,
        summary="Ids are drawn at 1.5 times the temperature that was asked for.",
    ),
    _fault(
        "top-p-lost",
        no_top_p,
        "drawing.0.5-0.7",
        "drawing.1.0-0.7",
        summary=("Ids are drawn from all, not from the likeliest that hold the share asked for."),
    ),
    _fault(
        "top-k-lost",
        no_top_k,
        *FEW,
        summary="Ids are drawn from all, not from as many of the likeliest as asked for.",
    ),
)
