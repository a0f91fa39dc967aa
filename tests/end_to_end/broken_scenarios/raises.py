"""The block raises an error of its own."""

from conformance import scenario


@scenario()
def raises(lm, case):
    with lm.trace(case.prompts[0]):
        logits = lm.logits.save()
        raise ValueError("the block's own words")
    return [{"logits": logits}]


@raises.reference
def _(model, case):
    return [{"logits": model.run(case.prompts[0]).logits}]
