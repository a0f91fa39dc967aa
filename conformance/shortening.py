"""How a long text or a long list of a run's own is cut, wherever it is shown in one line."""

from collections.abc import Iterable


def clip(text: str, most: int = 240) -> str:
    """The text on one line, `most` characters long at the most; an ellipsis ends what is cut."""
    words = " ".join(text.split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"


def few(names: Iterable[str], most: int) -> str:
    """The names, each once; of more than `most` the first, and how many more there are."""
    distinct = list(dict.fromkeys(names))
    more = f" and {len(distinct) - most} more" if len(distinct) > most else ""
    return ", ".join(distinct[:most]) + more
