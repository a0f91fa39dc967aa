"""Steering over a generation: a vector is added after one layer at every step."""

PROMPT = "The capital of France is"
LAYER, STEPS = 1, 4


def trace(lm):
    vector = 0.5 * lm.direction(LAYER)
    with lm.trace(PROMPT, steps=STEPS) as tracer:
        seen = {"stream": [], "logits": [], "tokens": []}.save()
        for _ in tracer.iter[:STEPS]:
            lm.layers[LAYER].stream = lm.layers[LAYER].stream + vector
            seen["stream"].append(lm.layers[LAYER + 1].stream)
            seen["logits"].append(lm.logits)
            seen["tokens"].append(lm.token)
    return seen
