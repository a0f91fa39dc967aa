"""Shorten long texts and lists of a run for display in one line, and compare texts of two runs."""

import re
from collections.abc import Iterable

_NUMBER = re.compile(r"0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[+-]?\d+)?", re.IGNORECASE)


def clip(text: str, most: int = 240) -> str:
    """Return the text on one line of at most `most` characters; an ellipsis marks a cut."""
    words = " ".join(text.split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def few(names: Iterable[str], most: int) -> str:
    """Return the distinct names, at most `most`, and how many more there are."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - most} more" if len(distinct) > most else ""
    return ", ".join(distinct[:most]) + more


def without_numbers(text: str) -> str:
    """Replace numbers and addresses, which differ between runs and models, by `#`."""
    return _NUMBER.sub("#", text)
