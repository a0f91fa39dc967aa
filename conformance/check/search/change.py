"""What a rewrite proposes, and what it may know of the difference."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from conformance.check.search.program import Program, Splice
from conformance.check.values.known_values import Part


@dataclass(frozen=True)
class Change:
    """One way to rewrite a file. Of two changes at equally likely lines the smaller `cost` is tried
    first. One that is `anywhere` may explain a difference that shows at another line.
    """

    splices: tuple[Splice, ...]
    words: str
    cost: int
    anywhere: bool = False


def change(cost: int, words: str, *splices: Splice, anywhere: bool = False) -> Change:
    """Return the change that these splices make together."""
    return Change(splices, words, cost, anywhere)


@dataclass(frozen=True)
class Clues:
    """What running a file has shown. Lines are of the text that ran.

    `lines` are where the engine raised an error, the innermost first. `wrong` names the values that
    differ. `parted`: the layers themselves computed something else, so a write is involved. `meant`
    is where transformers has what the wrong values should be. `dual`: a layer returns two tensors
    whose sum is the stream; `single`: one tensor. `widths` are transformers' by module name,
    `modules` the names in a layer, `norms` the paths of the norms outside of them, `embedding` that
    of the embeddings.
    """

    lines: tuple[int, ...] = ()
    wrong: tuple[str, ...] = ()
    parted: bool = False
    meant: tuple[Part, ...] = ()
    dual: bool = False
    single: bool = False
    modules: tuple[str, ...] = ()
    widths: Mapping[str, int] = field(default_factory=dict)
    head: str = "lm_head"
    norms: tuple[str, ...] = ()
    embedding: str = ""


#: A rewrite: every version of the file that it can think of.
Rewrite = Callable[[Program, Clues], Iterator[Change]]


def replace_patterns(name: str, words: str, *table: tuple[int, str, str]) -> Rewrite:
    """Return the rewrite of this name that puts another text in the place of what fits a pattern:
    the cost, the pattern, the text.
    """

    def rewrite(program: Program, _: Clues) -> Iterator[Change]:
        for cost, pattern, text in table:
            for node, holes in program.matches(pattern):
                yield change(cost, words, program.swap(node, program.filled(text, holes)))

    rewrite.__name__ = name
    return rewrite
