"""The tokens that a run generated, and whether they are the truth's."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from conformance.records import Case, Site
from conformance.store import RunFolder

#: Token ids by run ("", "clean", "edited"), one tuple a prompt.
Continuation = Mapping[str, tuple[tuple[int, ...], ...]]


def continuation(values: Mapping[str, Tensor], prompts: int) -> dict[str, tuple[tuple[int, ...], ...]]:
    """The generated ids among observations by site; {} when a scenario keeps none."""
    found: dict[str, dict[int, dict[int, int]]] = {}
    for text, value in values.items():
        site = Site.parse(text)
        if site.name == "tokens" and value.numel() == 1:
            found.setdefault(site.run, {}).setdefault(site.prompt, {})[site.step] = int(value)
    return {
        run: tuple(
            tuple(token for _, token in sorted(by_prompt.get(prompt, {}).items()))
            for prompt in range(prompts)
        )
        for run, by_prompt in sorted(found.items())
    }


def truth_of(values: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The truth's observations among those of every member."""
    return {
        key.partition("|")[2]: value for key, value in values.items() if key.startswith("truth|")
    }


def differing(
    run: RunFolder, model: str, backend: str, reference: str, case: Case
) -> dict[str, tuple[tuple[int, ...], ...]]:
    """What a backend generated, when it is not what the truth generated; else {}.

    Only a difference before the last step matters: the last token is nobody's context.
    """
    prompts = len(case.prompts)
    mine = continuation(run.observations(model, backend, case.key), prompts)
    truth = continuation(truth_of(run.observations(model, reference, case.key)), prompts)
    same = all(
        ids[:-1] == known[:-1]
        for key in mine.keys() & truth.keys()
        for ids, known in zip(mine[key], truth[key], strict=True)
    )
    return {} if same else mine
