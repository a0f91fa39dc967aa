"""Early stop: the model runs up to the layer that is read, and no further."""

PROMPT = "The capital of France is"


def trace(lm):
    with lm.trace(PROMPT) as tracer:
        hidden = lm.layers[1].stream.save()
        tracer.stop()
    return {"hidden": hidden}
