"""A float32 vector is added to a stream: what is assigned is cast."""

import torch

VECTOR = torch.randn(256, generator=torch.Generator().manual_seed(3))


def trace(lm):
    with lm.trace("The capital of France is"):
        lm.layers[2].stream = lm.layers[2].stream + 4.0 * VECTOR
        hidden = lm.layers[3].stream.save()
        logits = lm.logits.save()
    return {"hidden": hidden, "logits": logits}
