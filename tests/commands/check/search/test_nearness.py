"""Which of two versions of a file is nearer to agreeing."""

from __future__ import annotations

import pytest

from conformance.commands.check.search.trial import FileReference
from conformance.spec.records import Outcome, Precision, Status

TEXT = "\n" * 12


def score(status: Status, *lines: int) -> tuple[float, ...]:
    return FileReference({}).try_of(TEXT, Outcome(status), {}, Precision.FLOAT32, lines).score


def test_an_error_at_a_later_line_is_nearer_and_one_before_the_file_is_farthest():
    assert score(Status.ERROR, 9) < score(Status.ERROR, 4) < score(Status.ERROR)


@pytest.mark.parametrize("status", [Status.CRASH, Status.TIMEOUT])
def test_an_error_is_no_progress_from_a_process_that_ended_without_a_line(status):
    assert score(status) <= score(Status.ERROR, 12)
    assert score(status, 4) == score(Status.ERROR, 4)
