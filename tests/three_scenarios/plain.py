"""Three cases, of which nothing is asked: for engines that are wrong on purpose."""

from typing import Any

from conformance.spec.records import Case
from conformance.spec.scenario import scenario


@scenario(options={"which": ("first", "bad", "last")})
def plain(lm: Any, case: Case) -> Any:
    raise NotImplementedError("a faulty engine does not look at it")


@plain.reference
def _(model: Any, case: Case) -> Any:
    raise NotImplementedError("a faulty engine does not look at it")
