"""Each prompt has the other one's logits."""

from conformance import scenario


@scenario()
def swapped_prompts(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = lm.logits.save()
        with tracer.invoke(case.prompts[1]):
            second = lm.logits.save()
    return [{"logits": second}, {"logits": first}]


@swapped_prompts.reference
def _(model, case):
    return [{"logits": model.run(prompt).logits} for prompt in case.prompts]
