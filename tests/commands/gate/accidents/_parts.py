"""What the accidents share: a read, and a memory of the worker's own."""

#: Filled by `a_first`; a fresh worker's is empty.
seen = []


def read(lm, case):
    with lm.trace(case.prompts[0]):
        logits = lm.logits.save()
    return [{"logits": logits}]


def reference_values(model, case):
    return [{"logits": model.run(case.prompts[0]).logits}]
