"""The expressions of `-k`: words joined by `and`, `or`, `not` and parentheses (pure)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from conformance.errors import ConformanceError

_TOKEN = re.compile(r"[()]|[^\s()]+")
#: Operators and their precedence.
_BINDS = {"or": 0, "and": 1, "not": 2}


def matcher(expression: str) -> Callable[[str], bool]:
    """Return a test of cell ids from words joined by `and`, `or`, `not` and parentheses.

    A word matches an id that contains it. An empty expression matches everything.
    """
    tokens = _TOKEN.findall(expression)
    if not tokens:
        return lambda _: True
    steps = _postfix(tokens)
    if steps is None:
        raise ConformanceError(
            f"cannot read the expression {expression[:200]!r}",
            remedy="words joined by and, or, not and parentheses: -k 'steering and not last'",
        )

    def test(text: str) -> bool:
        lower = text.lower()
        stack: list[bool] = []
        for step in steps:
            if step == "not":
                stack.append(not stack.pop())
            elif step in _BINDS:
                right, left = stack.pop(), stack.pop()
                stack.append(left and right if step == "and" else left or right)
            else:
                stack.append(step.lower() in lower)
        return stack.pop()

    return test


def _postfix(tokens: Sequence[str]) -> list[str] | None:
    """Convert to postfix notation; None for an invalid expression.

    Without recursion, so that long or deeply nested expressions cost no more than reading them.
    """
    done: list[str] = []
    open_: list[str] = []
    wanted = True  # a word, `not` or `(` comes next
    for word in tokens:
        if wanted != (word not in {"and", "or", ")"}):
            return None
        if word in {"not", "("}:
            open_.append(word)
        elif word in {"and", "or", ")"}:
            binds = _BINDS.get(word, 0)
            while open_ and open_[-1] != "(" and _BINDS[open_[-1]] >= binds:
                done.append(open_.pop())
            if word != ")":
                open_.append(word)
                wanted = True
            elif not open_:
                return None
            else:
                open_.pop()
        else:
            done.append(word)
            wanted = False
    return None if wanted or "(" in open_ else done + open_[::-1]
