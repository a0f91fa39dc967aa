"""How a long text of a run's own is cut, wherever it is shown in one line."""


def clip(text: str, most: int = 240) -> str:
    """The text on one line, `most` characters long at the most; an ellipsis ends what is cut."""
    words = " ".join(text.split())
    return words if len(words) <= most else words[: most - 1].rstrip() + "…"
