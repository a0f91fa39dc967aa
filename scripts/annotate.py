"""junit.xml of a gate → a line for GitHub's runner for each cell that closes it: an annotation."""

from __future__ import annotations

import sys
from pathlib import Path
from xml.etree import ElementTree as ET

#: GitHub shows ten of a kind for a step; the summary has them all.
MOST = 10


def commands(text: str) -> list[str]:
    """`::error title=…::…` for each failure and error."""
    lines = []
    for case in ET.fromstring(text).iter("testcase"):  # noqa: S314 - the gate wrote it just now
        for found in [*case.findall("failure"), *case.findall("error")]:
            title = escaped(f"{case.get('classname')} {case.get('name')}", ",:")
            lines.append(f"::error title={title}::{escaped(found.get('message') or '')}")
    return lines


def escaped(text: str, more: str = "") -> str:
    """As GitHub's runner wants it; a title has no comma and no colon of its own."""
    for sign in "%\r\n" + more:
        text = text.replace(sign, f"%{ord(sign):02X}")
    return text


if __name__ == "__main__":
    place = Path(sys.argv[1])
    if place.is_file():
        print("\n".join(commands(place.read_text(encoding="utf-8"))[:MOST]))
