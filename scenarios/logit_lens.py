"""Logit lens: the final norm and the head applied, inside the trace, to the last token's
stream after every layer.
"""

from conformance import scenario


def block(lm):
    """What each prompt's block does."""
    return {
        "logits": {index: lm.lens(layer.stream[-1:])[0] for index, layer in enumerate(lm.layers)}
    }


@scenario(needs=lambda _: ("norm", "head"), numerics=False)
def logit_lens(lm, case):
    with lm.trace() as tracer:
        with tracer.invoke(case.prompts[0]):
            first = block(lm).save()
        with tracer.invoke(case.prompts[1]):
            second = block(lm).save()
    return [first, second]


@logit_lens.reference
def _(model, case):
    runs = [model.run(prompt).stream[0] for prompt in case.prompts]
    return [
        {"logits": {index: model.lens(stream[-1:])[0] for index, stream in streams.items()}}
        for streams in runs
    ]
