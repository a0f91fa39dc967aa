"""Nothing is asked of an engine that is wrong on purpose."""

from typing import Any

from conformance.spec.records import Case
from conformance.spec.scenario import scenario


@scenario()
def plain(lm: Any, case: Case) -> Any:
    raise NotImplementedError("a faulty engine does not look at it")
