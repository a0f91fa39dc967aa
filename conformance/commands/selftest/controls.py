"""Negative controls: judge with one gate broken on purpose, in this process only.

A self-test that passes with a blind gate proves nothing. Each control names a gate and disables its
part of the judge; judging the same stored observations again must then fail the self-test.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

from conformance.errors import ConformanceError
from conformance.judge.cell import integers, verdicts
from conformance.judge.cell import judge_cell as cell
from conformance.judge.cell.both_precisions import VerdictDecision, decide
from conformance.judge.cell.evidence import Evidence
from conformance.judge.cell.measures import floor, gain, reach, relations, structure, tokens
from conformance.judge.runs import one_case
from conformance.spec.records import Answer, Limits, Relation, Thresholds, Verdict


def _unchanged(thresholds: Thresholds) -> Thresholds:
    return thresholds


@dataclass(frozen=True)
class Control:
    """A gate, and how it is broken: by patches of its code (owner, name, what to put there), or by
    other thresholds.
    """

    gate: str
    patches: tuple[tuple[Any, str, Any], ...] = ()
    thresholds: Callable[[Thresholds], Thresholds] = _unchanged

    @contextmanager
    def broken(self) -> Iterator[None]:
        with ExitStack() as stack:
            for owner, name, new in self.patches:
                stack.enter_context(mock.patch.object(owner, name, new))
            yield


def _returning(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def _settling(blind: Verdict) -> Control:
    """Return the control by which what would get this verdict passes."""
    settle = Evidence.settle

    def lenient(self: Evidence, site: Any, verdict: Verdict, message: str, **extra: float) -> None:
        settle(self, site, Verdict.EXACT if verdict is blind else verdict, message, **extra)

    return Control(str(blind), ((Evidence, "settle", lenient),))


def _measuring(gate: str, **changed: Any) -> Control:
    """Return the control by which some fields of a distance never show an error."""
    measures = floor.measures

    def lenient(*arguments: Any) -> list[floor.Distance]:
        return [replace(distance, **changed) for distance in measures(*arguments)]

    return Control(gate, ((floor, "measures", lenient),))


def _holds(_: Any, __: Any, pair: tuple[str, str], *___: Any) -> Relation:
    return Relation(" ≡ ".join(pair), holds=True)


effect = gain.effect
choice = tokens.choice


def _landed(change: gain.ObservedChange, limits: Limits) -> gain.Effect:
    measured = effect(change, limits)
    untouched = measured.landing is gain.Landing.UNTOUCHED
    landing = measured.landing if untouched else gain.Landing.LANDED
    return replace(measured, landing=landing, without=(), reached=())


def _no_leak(change: gain.ObservedChange, limits: Limits) -> gain.Effect:
    return replace(effect(change, limits), leaking=())


def _benign(*arguments: Any) -> tokens.TokenChoice:
    return replace(choice(*arguments), benign=True)


def widened(*names: str) -> Callable[[Thresholds], Thresholds]:
    """Return a change of the thresholds of both precisions: without these limits."""

    def change(limits: Limits) -> Limits:
        return replace(limits, **dict.fromkeys(names, math.inf))

    return lambda thresholds: replace(
        thresholds, float32=change(thresholds.float32), bf16=change(thresholds.bf16)
    )


def _float32_alone(answers: list[Answer]) -> VerdictDecision:
    shown = [answer for answer in answers if not answer.verdict.neutral]
    return decide(shown or answers)


#: The module; the package's attribute of this name is its function.
_ASSESS = importlib.import_module("conformance.judge.expectations.assess")
_OWN_LOGITS = (tokens, "follow_logits", _returning(None))
_IDS_ALIKE = _returning(Relation(structure.PROMPT_IDS, holds=True))

CONTROLS: Mapping[str, Control] = {
    control.gate: control
    for control in (
        _settling(Verdict.MISSING),
        _settling(Verdict.STRUCTURE),
        _settling(Verdict.DTYPE),
        Control("finite", ((structure, "finite", _returning("")),)),
        Control("aliased", ((relations, "aliased", _returning({})),)),
        Control("median", thresholds=widened("k_med", "far_med")),
        Control("maximum", thresholds=widened("k_max", "far_max")),
        _measuring("massive", massive=0.0, massive_near=0.0, massive_ulps=0.0),
        _measuring("shift", shift=0.0),
        _measuring("zero", zero=True),
        Control("gain", ((gain, "effect", _landed),)),
        Control("leak", ((gain, "effect", _no_leak),)),
        Control("bitwise rows", ((reach, "unreached", _returning({})),)),
        # An id is checked neither against the reference's logits nor against the engine's own.
        Control("token", ((tokens, "choice", _benign), _OWN_LOGITS)),
        Control("own logits", (_OWN_LOGITS,)),
        Control("drawn", ((cell, "likelihood", _returning(None)),)),
        Control("prompt ids", ((structure, "prompt_ids", _IDS_ALIKE),)),
        Control("equal within", ((relations, "equal_within", _holds),)),
        Control("one stage", ((one_case, "compare_exact", _returning(())),)),
        Control("integers", ((integers, "compare", _returning((Verdict.EXACT, ""))),)),
        Control("refusal", ((one_case, "decide", _float32_alone),)),
        # A layer is held to its own input where bf16 decides alone.
        Control("own input", ((one_case, "with_own_input", _returning(None)),)),
        # What known.yaml lets pass: any value under a prediction, any broken rule.
        Control("prediction", ((_ASSESS, "_fits_prediction", _returning(value=True)),)),
        Control("rules", ((_ASSESS, "_other_rules", _returning([])),)),
    )
}


#: Gates that no injection can test, because other gates always report first.
#: tests/commands/selftest/test_controls.py breaks them on cells made for it (docs/selftest.md).
OUT_OF_REACH: Mapping[str, Control] = {
    control.gate: control
    for control in (
        Control("flips", ((tokens, "flips", _returning(None)),)),
        Control("arrival", ((verdicts, "_arrived", _returning(value=True)),)),
    )
}


def find(gate: str) -> Control:
    """Return the control of this gate. Raises ConformanceError if there is none."""
    known = {**CONTROLS, **OUT_OF_REACH}
    if gate not in known:
        remedy = f"one of: {', '.join(known)}"
        raise ConformanceError(f"there is no gate {gate!r} to break", remedy=remedy)
    return known[gate]
