"""What engines say when they do not do something, told from what goes wrong."""

import pytest

from conformance.engines.refusals import REFUSALS, refusal, refused


@pytest.mark.parametrize("words", REFUSALS)
def test_the_line_that_refuses_is_kept(words):
    found = refused(RuntimeError(f"the engine ended\n  so: {words}, it says\nand more"))
    assert str(found) == f"so: {words}, it says"


def test_anything_else_is_an_error():
    assert refused(NotImplementedError("two prompts")) is None
    assert refusal("") is None
