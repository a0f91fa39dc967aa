"""What every engine does without nnsight, run last: it tells its own faults from nnsight's.

Its own generation, and the stream after every layer as plain torch hooks see it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from conformance.records import Case, digest
from conformance.scenario import PAIR, built_in


def _generated_reference(model: Any, case: Case) -> Any:
    runs = [model.run(prompt, steps=case.steps) for prompt in case.prompts]
    return [
        {"logits": [logits.float().log_softmax(-1) for logits in run.logits], "tokens": run.tokens}
        for run in runs
    ]


def _computed_reference(model: Any, case: Case) -> Any:
    return [{"stream": model.run(prompt).stream} for prompt in case.prompts]


#: No trace: the engine is asked as any of its users would ask it.
GENERATED = built_in(
    "without_nnsight",
    "Plain: the tokens and log-probabilities that the engine gives without nnsight.",
    __file__,
    run=lambda lm, case: lm.generate(case.prompts, case.steps),
    reference=_generated_reference,
    prompts=PAIR,
    steps=8,
)

#: No trace either, but the stream is read as the layout says, so there must be one.
COMPUTED = built_in(
    "own_streams",
    "Own streams: what plain hooks see after every layer, without nnsight.",
    __file__,
    run=lambda lm, case: lm.computed(case.prompts),
    reference=_computed_reference,
    prompts=PAIR,
)

WITHOUT_NNSIGHT = {scenario.name: scenario for scenario in (GENERATED, COMPUTED)}
#: Generated from prompts other than the pair: the prefill's token and the first decode's. How an
#: engine goes on from there is asked once, of the pair.
_FEW = 2


def case_of(name: str, prompts: tuple[str, ...]) -> Case:
    """One of these from other prompts."""
    [whole] = WITHOUT_NNSIGHT[name].expand(0)
    if prompts == PAIR:
        return replace(whole, name="all")
    return replace(whole, name=digest(prompts), prompts=prompts, steps=min(whole.steps, _FEW))


def alone(name: str, case: Case) -> Case | None:
    """What an engine does without nnsight beside a case, with each of its prompts once: hundreds of
    draws are of one. Where the case asks other settings, the engine generates as many tokens with
    these, as often: what goes wrong by them need not do so elsewhere. How it extracts is compared
    in the very cells that ask for it.
    """
    if not case.settings:
        return case_of(name, tuple(dict.fromkeys(case.prompts)))
    if name != GENERATED.name or "extraction" in case.settings:
        return None
    [whole] = GENERATED.expand(0)
    asked = digest([case.prompts, case.steps, dict(case.settings)])
    return replace(
        whole, name=asked, prompts=case.prompts, steps=case.steps, settings=case.settings
    )


def cases_beside(cases: Iterable[Case]) -> tuple[Case, ...]:
    """What an engine is to do besides these cases: once for every set of their prompts, and of the
    settings that they ask.
    """
    beside = (alone(name, case) for case in cases for name in WITHOUT_NNSIGHT)
    return tuple({case.key: case for case in beside if case is not None}.values())
