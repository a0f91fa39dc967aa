"""One warm process for all engines of the relay's tests, and of others that want one engine."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# The lab is a script too, which finds what lies beside it by its bare name.
sys.path.insert(0, str(Path(__file__).parent / "relay"))

from relay_lab import Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()
