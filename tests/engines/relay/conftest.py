"""One warm process for all engines of the relay's tests."""

from collections.abc import Iterator

import pytest
from relay_lab import Lab


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    lab = Lab()
    yield lab
    lab.close()
