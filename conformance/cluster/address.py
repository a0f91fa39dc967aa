"""The values of `--on` (pure functions)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from conformance.errors import ConformanceError

#: `host:port`, with or without Ray's scheme; an IPv6 address is in brackets.
_PLACE = re.compile(r"(?:ray://)?(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):[0-9]{1,5}")


@dataclass(frozen=True)
class Address:
    """`place` is an address for Ray; "" for RAY_ADDRESS or, without that, a new local cluster."""

    place: str = ""

    def __str__(self) -> str:
        return self.place or "ray"


def parsed(text: str) -> Address:
    """Parse `ray`, `ray://HOST:PORT` or `HOST:PORT`. Raises ConformanceError for other text."""
    if text == "ray":
        return Address()
    if _PLACE.fullmatch(text) is None:
        raise ConformanceError(
            f"--on {text!r} names no cluster",
            remedy="--on ray (what RAY_ADDRESS names, or a new one on this machine), "
            "--on ray://HOST:10001 (through Ray's client), --on HOST:6379 (its own network)",
        )
    return Address(text)
