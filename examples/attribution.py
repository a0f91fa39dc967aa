"""Attribution by differences: how much a token's logit falls when a layer's MLP is left out.

Forwards only, so that it runs where there are no gradients.
"""

PROMPT = "The capital of France is"
LAYERS, TOKEN = (0, 1, 2), 17


def logit(lm, without=None):
    with lm.trace(PROMPT):
        if without is not None:
            lm.layers[without].mlp.live[:] = 0
        value = lm.logits[TOKEN].save()
    return value


def trace(lm):
    whole = logit(lm)
    return {"logit": whole, "falls": {layer: whole - logit(lm, layer) for layer in LAYERS}}
