"""Nothing is observed."""

from conformance import scenario


@scenario()
def nothing(lm, case):
    return []


@nothing.reference
def _(model, case):
    return [{"logits": model.run(case.prompts[0]).logits}]
