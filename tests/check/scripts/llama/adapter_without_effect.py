"""On the adapter: a copy is changed and never assigned."""

PROMPT = "The capital of France is"


def trace(lm):
    with lm.trace(PROMPT):
        lm.layers[1].stream[:] = 0
        logits = lm.logits.save()
    return {"logits": logits}
