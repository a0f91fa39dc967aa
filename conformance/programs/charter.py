"""The seven scenarios that everything began with, as programs: a test holds that they get the
verdicts that the scenarios get.
"""

from __future__ import annotations

from collections.abc import Mapping

from conformance.programs.records import Do, Operation, Program
from conformance.scenario import PAIR, position

#: As scenarios/steering.py and scenarios/multigen.py have them.
_DOSES = {"small": 0.005, "large": 0.5}
_PER_STEP = 0.25


def charter(layers: int) -> Mapping[str, Program]:
    """By scenario and case, for a model of so many layers."""

    def at(place: str) -> int:
        return position(place, layers)

    def reads(first: int) -> tuple[Operation, ...]:
        return tuple(Operation(Do.READ, layer=layer) for layer in range(first, layers))

    def pair(*operations: Operation, steps: int = 1) -> Program:
        return Program(PAIR, operations, steps)

    early, late = at("early"), at("late")
    programs = {
        "clean-pair": pair(),
        "clean-alone": Program(PAIR[:1]),
        "read_all-pair": pair(*reads(0)),
        "read_all-alone": Program(PAIR[:1], reads(0)),
        "cross_write-one": pair(
            Operation(Do.READ, layer=early),
            Operation(Do.REPLACE, layer=late, value=0),
            *reads(early + 1),
        ),
        "cross_write-two": pair(
            Operation(Do.READ, layer=early),
            Operation(Do.REPLACE, layer=at("middle"), value=0),
            Operation(Do.REPLACE, layer=at("last"), value=0),
            *reads(early + 1),
        ),
        "multigen-read": pair(
            Operation(Do.READ, layer=early), Operation(Do.READ, layer=late), steps=8
        ),
        "multigen-write": pair(
            Operation(Do.READ, layer=early),
            Operation(Do.ADD, layer=at("middle"), amount=_PER_STEP),
            Operation(Do.READ, layer=late),
            steps=8,
        ),
        "multigen-cross": pair(
            Operation(Do.READ, layer=early),
            Operation(Do.ADD, layer=late, value=0),
            Operation(Do.READ, layer=late),
            steps=8,
        ),
    }
    for first, second in (("first", "middle"), ("early", "last")):
        programs[f"cross_consume-{first}-{second}"] = pair(
            Operation(Do.READ, layer=at(first)),
            Operation(Do.DIFFERENCE, layer=at(second), value=0),
            Operation(Do.PRODUCT, layer=at(second), value=0),
        )
    for place in ("first", "middle", "last"):
        programs[f"ablation-{place}"] = pair(Operation(Do.ZERO, layer=at(place)), *reads(at(place)))
        for dose, amount in _DOSES.items():
            steer = Operation(Do.ADD, layer=at(place), amount=amount)
            programs[f"steering-{place}-{dose}-all"] = pair(steer, *reads(at(place)))
    return programs
