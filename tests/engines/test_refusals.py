"""What engines say when they do not do something, told from what goes wrong."""

import runpy
import textwrap

import pytest
import torch

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


def test_an_assert_without_words_refuses_by_its_line(tmp_path):
    path = tmp_path / "kernel.py"
    source = """
        import torch

        def shrink(weight):
            assert weight.dtype in [torch.float16, torch.bfloat16]

        def expand(inputs):
            assert inputs.is_contiguous()
    """
    path.write_text(textwrap.dedent(source))
    kernels = runpy.run_path(str(path))
    with pytest.raises(AssertionError) as caught:
        kernels["shrink"](torch.zeros(1))
    line = "assert weight.dtype in [torch.float16, torch.bfloat16]"
    assert str(refused(caught.value)) == f"AssertionError: {line}"
    with pytest.raises(AssertionError) as caught:
        kernels["expand"](torch.zeros(2, 2).t())
    assert refused(caught.value) is None
