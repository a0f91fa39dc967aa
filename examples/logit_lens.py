"""Logit lens: the final norm and the head on the last token's stream after every layer."""

PROMPT = "The capital of France is"


def trace(lm):
    with lm.trace(PROMPT):
        lens = {index: lm.lens(layer.stream[-1:])[0] for index, layer in enumerate(lm.layers)}
        lens = lens.save()
    return {"lens": lens}
