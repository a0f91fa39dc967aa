"""A user's own file: what `conformance check` runs, alike on every engine that it opens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from conformance.records import Case
from conformance.scenario import built_in


def _only_by_its_engine(lm: Any, case: Case) -> Any:
    raise NotImplementedError("only the engines of a check run a user's file")


USER_TRACE = built_in(
    "check",
    "Check: a user's own trace.",
    __file__,
    run=_only_by_its_engine,
    reference=_only_by_its_engine,
)

#: Under which transformers' worker says how each value is reached in what the function returned:
#: JSON of site to text, as bytes.
CALLED = "called|names"


def case_of(
    name: str,
    path: Path,
    function: str,
    prompts: tuple[str, ...],
    original: Path | None = None,
) -> Case:
    """Return the case that runs this function of a file. A version of a file stands for the
    `original` one: it is imported as if it lay there.
    """
    return Case(
        scenario=USER_TRACE.name,
        name=name,
        prompts=prompts,
        options={"file": str(path), "function": function, "original": str(original or path)},
    )
