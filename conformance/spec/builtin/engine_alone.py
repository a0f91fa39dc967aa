"""Cases that an engine runs without nnsight, to separate its own errors from nnsight's.

They run last: the engine's own generation, and the stream after every layer by torch hooks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from conformance.spec.records import Case, digest
from conformance.spec.scenario import PAIR, built_in


def _generated_reference(model: Any, case: Case) -> Any:
    runs = [model.run(prompt, steps=case.steps) for prompt in case.prompts]
    return [
        {"logits": [logits.float().log_softmax(-1) for logits in run.logits], "tokens": run.tokens}
        for run in runs
    ]


def _computed_reference(model: Any, case: Case) -> Any:
    return [{"stream": model.run(prompt).stream} for prompt in case.prompts]


#: No trace: the engine generates as it does for any of its users.
GENERATED = built_in(
    "without_nnsight",
    "Plain: the tokens and log-probabilities that the engine gives without nnsight.",
    __file__,
    run=lambda lm, case: lm.generate(case.prompts, case.steps),
    reference=_generated_reference,
    prompts=PAIR,
    steps=8,
)

#: No trace either. The stream is read as the layout says, so the model needs a layout.
COMPUTED = built_in(
    "own_streams",
    "Own streams: what plain hooks see after every layer, without nnsight.",
    __file__,
    run=lambda lm, case: lm.computed(case.prompts),
    reference=_computed_reference,
    prompts=PAIR,
)

WITHOUT_NNSIGHT = {scenario.name: scenario for scenario in (GENERATED, COMPUTED)}
#: Steps for prompts other than the pair: the prefill and one decode. The pair alone covers more.
_FEW = 2


def case_of(name: str, prompts: tuple[str, ...]) -> Case:
    """Return one of these cases with other prompts."""
    [whole] = WITHOUT_NNSIGHT[name].expand(0)
    if prompts == PAIR:
        return replace(whole, name="all")
    return replace(whole, name=digest(prompts), prompts=prompts, steps=min(whole.steps, _FEW))


def alone(name: str, case: Case) -> Case | None:
    """Return what an engine does without nnsight to explain a case, or None if there is nothing.
    Each prompt is run once, because a case may draw hundreds of times from one prompt. If the case
    configures settings, the engine generates as many tokens with the same settings, prompts and
    repetitions: an error under them need not occur elsewhere. Extraction is compared in the cells
    that request it.
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
    """Return the cases that an engine runs without nnsight for these cases: one for each set of
    prompts and settings.
    """
    beside = (alone(name, case) for case in cases for name in WITHOUT_NNSIGHT)
    return tuple({case.key: case for case in beside if case is not None}.values())
