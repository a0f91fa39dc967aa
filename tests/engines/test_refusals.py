"""What engines say when they do not do something, told from what goes wrong."""

import pytest

from conformance.engines.refusals import REFUSALS, refusal, refused


@pytest.mark.parametrize("words", REFUSALS)
def test_the_line_that_refuses_is_kept(words):
    found = refused(RuntimeError(f"the engine ended\n  so: {words}, it says\nand more"))
    assert str(found) == f"so: {words}, it says"


@pytest.mark.parametrize("use", ["its attribute .weight", "calling it"])
def test_what_pipeline_support_does_not_do_with_another_stages_module_is_a_refusal(use):
    words = (
        f"'model.lm_head' lives on pipeline stage 1; {use} is not available on stage 0. Its "
        ".output, .input and .inputs can be read and written from any stage."
    )
    assert str(refused(RuntimeError(f"RemoteModuleError: {words}\n  in the block"))).endswith(words)


def test_anything_else_is_an_error():
    assert refused(NotImplementedError("two prompts")) is None
    assert refusal("") is None
