"""Text of a run's own in Markdown, as a CI shows it."""

from __future__ import annotations

import html
import re

_WORDS = 300
_SPECIAL = re.compile(r"([\\`*_{}\[\]|#~])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Text of a run's own as one line that Markdown does not read as anything else."""
    words = " ".join(text.split())
    if len(words) > _WORDS:
        words = words[: _WORDS - 1].rstrip() + "…"
    harmless = html.escape(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", words), quote=False)
    return _SPECIAL.sub(r"\\\1", harmless)
