"""Activation patching: the last token's stream of one prompt is put into another one's run."""

DONOR, RECIPIENT = "The capital of Italy is", "The capital of France is"
LAYER = 1


def trace(lm):
    with lm.trace(DONOR):
        donor = lm.layers[LAYER].stream[-1].save()
    with lm.trace(RECIPIENT):
        stream = lm.layers[LAYER].stream
        stream[-1] = donor
        lm.layers[LAYER].stream = stream
        after = lm.layers[LAYER + 1].stream.save()
        logits = lm.logits.save()
    return {"after": after, "logits": logits}
