"""How far off a cell is, and which words say only that it is off (pure).

An entry's `at_most` bounds the size: a cell that is further off is another failure.
"""

from __future__ import annotations

import math
import re
from decimal import ROUND_UP, Decimal

from conformance.spec.records import LARGEST, Answer, CellResult, Precision, Verdict

#: An unrelated value of the same length is √2 times that length off: a bound must be smaller.
TOO_FAR = math.sqrt(2)
#: The verdicts with a distance, which the judge words alike whatever is off.
SIZED = frozenset({Verdict.WRONG, Verdict.DRIFT})
#: Baseline runs of other prompts and machines differ in size, within the same order of magnitude.
_ROOM = Decimal("1.5")
#: What the judge says about any value that is off: verdicts, `judge.cell.diagnosis` when no fault
#: explains it, and the search for the layer. The last line is older wording.
_OF_ANYTHING = """
8 of 8 observations are off, first stream after layer 1 of prompt 0, step 1, clean run; logits of
prompt 1, edited run and 6 more: every token off, by up to 200 × noise; judged in bf16 alone,
float32 is unsupported; in bf16 only, in float32 match
no fault of the catalogue explains stream after layers 1-3, logits of prompts 0, 1 in the edited
run; the first difference is after layer 1, and everything after it differs too; only all tokens,
tokens 1-3 of prompt 0; layer 0 introduces the error, layers 1-3 only inherit it (each layer tried
in float32 with this run's own input); no single layer introduces the error: it builds up slowly
no known fault explains stream; first off after layer 1, and so is everything after it
"""
_WORD = re.compile(r"[^\W\d]\w*")


def says_nothing(words: str) -> bool:
    """Return whether the judge uses these words for any wrong value: they name no cause or part.

    Parts of its words count too, because an entry's words are searched as substrings.
    """
    return all(word in _OF_ANYTHING for word in _WORD.findall(words))


def largest_error(cell: CellResult) -> float | None:
    """Return the largest relative error of any observation that is off.

    Counted are the precision that decided the cell, and the other if it fails too. None if any
    failure has no size: a missing value, another token, a broken rule, an error.
    """
    sizes = [_size(answer) for answer in failing_answers(cell)]
    known = [size for size in sizes if size is not None]
    return max(known) if len(known) == len(sizes) else None


def bound_for(size: float | None) -> float | None:
    """Return the `at_most` of a new entry: half as much again, in two digits, or None."""
    if size is None or not 0 < size < TOO_FAR:
        return None
    wide = Decimal(str(size)) * _ROOM
    bound = float(wide.quantize(Decimal((0, (1,), wide.adjusted() - 1)), ROUND_UP))
    return bound if bound < TOO_FAR else None


def failing_answers(cell: CellResult) -> list[CellResult | Answer]:
    """Return the deciding answer, and the other precision's if it would fail by itself.

    A bf16 check without power would not: float32 has the power
    (`conformance.judge.cell.both_precisions`).
    """
    beside = cell.beside
    if beside is None or not beside.verdict.fails:
        return [cell]
    powerless = beside.verdict is Verdict.VACUOUS and beside.precision is Precision.BF16
    return [cell] if powerless else [cell, beside]


def _size(answer: CellResult | Answer) -> float | None:
    """Return how far its failed observations are off; None if one, or a rule, has no size."""
    off = [one for one in answer.observations if not one.verdict.passes]
    broken = any(rule.gates and not rule.holds for rule in answer.relations)
    sizes = [one.extra.get(LARGEST) for one in off if one.verdict in SIZED]
    known = [float(size) for size in sizes if isinstance(size, int | float)]
    whole = answer.verdict in SIZED and len(known) == len(off) and not broken
    return max(known) if known and whole else None
