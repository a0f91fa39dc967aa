"""The scenario behind `conformance check`: a user's own file, run alike on every engine."""

from __future__ import annotations

from pathlib import Path

from conformance.spec.records import Case
from conformance.spec.scenario import built_in

USER_TRACE = built_in("check", "Check: a user's own trace.", __file__)

#: The key under which transformers' worker reports how to reach each value in what the function
#: returned: JSON of site to text, as bytes.
CALLED = "called|names"


def case_of(
    name: str,
    path: Path,
    function: str,
    prompts: tuple[str, ...],
    original: Path | None = None,
) -> Case:
    """Return the case that runs this function of a file. If `path` is a version of another file,
    `original` names that file: the version is imported as if it lay there.
    """
    return Case(
        scenario=USER_TRACE.name,
        name=name,
        prompts=prompts,
        options={"file": str(path), "function": function, "original": str(original or path)},
    )
