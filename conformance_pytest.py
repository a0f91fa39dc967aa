"""The pytest plug-in of conformance (docs/pytest.md).

Loaded by every pytest of an environment that has conformance: so nothing is imported here until one
of its options or its fixture is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from conformance.judge.cell.judgement import Judgement


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance", "cells of the conformance matrix as tests")
    many = {"action": "append", "default": []}
    group.addoption(
        "--conformance-backend",
        **many,
        metavar="BACKEND",
        help="collect the cells on this backend; again for more",
    )
    group.addoption(
        "--conformance-model",
        **many,
        metavar="MODEL",
        help="collect the cells of this model; again for more (default: those of the tier)",
    )
    group.addoption(
        "--conformance-tier",
        default="",
        metavar="TIER",
        help="a selection of models and of their cells (default: `default`, or every cell of the "
        "models that are named)",
    )
    group.addoption(
        "--conformance-cells", default="", metavar="EXPR", help="only cells whose id matches"
    )
    group.addoption(
        "--conformance-jobs", type=int, default=0, metavar="N", help="groups of cells at a time"
    )
    group.addoption(
        "--conformance-precision",
        **many,
        choices=["float32", "bf16"],
        help="default: both",
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("conformance_backend") or config.getoption("conformance_model"):
        from conformance.pytest_cells import Matrix

        config.pluginmanager.register(Matrix(config), "conformance-matrix")


@pytest.fixture
def assert_same(record_property: Callable[[str, object], None]) -> Callable[..., Judgement]:
    """`conformance.assert_same`; the verdict and the largest error are noted in the report."""
    import conformance

    def judged(*values: Any, **named: Any) -> Judgement:
        try:
            found = conformance.assert_same(*values, **named)
        except conformance.NotSame as error:
            record_property("conformance", str(error.judgement.verdict))
            raise
        record_property("conformance", str(found.verdict))
        record_property("conformance_worst_ratio", found.worst_ratio)
        return found

    return judged
