"""Words that read like translated prose, each with a plain one, are in no text of the project."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Patterns, and what to write in their place.
BANNED = {
    r"mend(s|ed|ing)?": "fix",
    r"such ones": "the noun",
    r"of which": "two sentences",
    r"whose own": "two sentences",
    r"(otherwise|other) than (?=as|what|those)": "unlike, or two sentences",
    r"made otherwise": "built differently",
    r"unlike ones": "different, and the noun",
    r"said to be": "is",
    r"in (its|their) words": "verbatim",
    r"befall\w*": "happen to",
    r"(tell|tells|told|telling) (\w+ ){0,2}apart": "distinguish",
    r"at last": "finally, or nothing",
    r"honest(ly)?": "baseline, correct or fault-free",
    r"the (float32 )?truth": "the reference",
    r"at fault": "culprit",
    r"errands?": "remote job",
    r"luggage": "upload",
    r"crews?": "worker pool",
    r"hire[ds]?": "allocate",
}
TEXTS = re.compile(
    r"(conformance|scenarios|bench|scripts)/.*\.(py|html|js|css|j2)|docs/.*\.md|[A-Z]+\.md|[a-z]+\.yaml"
)


def found_in(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line, the banned words and what to write instead."""
    for pattern, better in BANNED.items():
        for match in re.finditer(rf"\b{pattern}\b".replace(" ", r"[\s#]+"), text, re.IGNORECASE):
            yield text.count("\n", 0, match.start()) + 1, match[0], better


def test_no_text_has_a_banned_word() -> None:
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    places = [
        f"{name}:{line}: {words!r}: write {better}"
        for name in listed
        if TEXTS.fullmatch(name) and name != "CHANGELOG.md"
        for line, words, better in found_in((ROOT / name).read_text(encoding="utf-8"))
    ]
    assert not places, "\n".join(places)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("# mended here", "mended"),
        ("two runs, of\n# which one ends", "of\n# which"),
        ('"Nothing tells the two apart"', "tells the two apart"),
        ("within the noise of honest runs", "honest"),
    ],
)
def test_a_banned_word_is_found_in_code_and_across_lines(text: str, words: str) -> None:
    assert [found for _, found, _ in found_in(text)] == [words]
