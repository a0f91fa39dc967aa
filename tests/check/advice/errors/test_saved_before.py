"""What is made of a saved value is not saved: the operator around it is named."""

import pytest

from conformance.check.advice.errors import failures
from conformance.check.parsing import source
from conformance.records import Outcome, Status


def told(folder, line, name="x"):
    """What is said of a function of this line that uses the name after the block."""
    path = folder / "mine.py"
    path.write_text(
        f"def hf(model):\n    with model.trace('a'):\n        h = model.model.norm.output\n"
        f"        {line}\n    return {{'x': {name}}}\n\n\ndef vllm(model):\n    return {{}}\n"
    )
    words = f"NameError: name '{name}' is not defined"
    detail = f"File \"{path}\", line 5, in hf\n    return {{'x': {name}}}"
    outcome = Outcome(Status.ERROR, 0.1, words, detail)
    return failures.explain(failures.Failed(outcome, source.read(path), "hf"))


@pytest.mark.parametrize(
    ("line", "by", "after"),
    [
        ("x = -(h * h).sum(dim=-1).save()", "the `-`", "x = (-(h * h).sum(dim=-1)).save()"),
        ("x = h[0].save() - h[1].save()", "the `-`", "x = (h[0] - h[1]).save()"),
        ("x = torch.relu(h.save())", "the call", "x = torch.relu(h).save()"),
        ("x = h.save().float()", "the call", "x = h.float().save()"),
        ("x = h.save()[0, -1]", "the index", "x = h[0, -1].save()"),
        ("x = [one.save() for one in h]", "the list", "x = ([one for one in h]).save()"),
        ("y, x = h.save(), 2 * h.save()", "the `*`", "y, x = h.save(), (2 * h).save()"),
        ("x = -nnsight.save(h + 1)", "the `-`", "x = (-(h + 1)).save()"),
    ],
)
def test_an_operator_after_the_save_is_named_with_the_whole_in_parentheses(
    tmp_path, line, by, after
):
    found = told(tmp_path, line)
    assert f"and {by} around it makes another value" in found.words
    [finding] = found.findings
    assert (finding.edit.line, finding.edit.after.strip()) == (4, after)


@pytest.mark.parametrize(
    ("line", "after"),
    [
        ("x = h * 2", "x = (h * 2).save()"),
        ("x = h[0]  # a row", "x = h[0].save()  # a row"),
        ("x, y = h", ""),
    ],
)
def test_what_nothing_saves_is_told_as_ever(tmp_path, line, after):
    found = told(tmp_path, line)
    assert "nothing of a block is left after it but what `.save()` kept" in found.words
    assert found.findings[0].edit.after.strip() == after


def test_what_is_saved_and_was_not_run_is_not_told_to_be_unsaved(tmp_path):
    assert told(tmp_path, "x = h.save()").words == "NameError: name 'x' is not defined"
