"""An SAE-like projection with random weights: features of a stream, and the stream without one."""

import torch

PROMPT = "The capital of France is"
LAYER, FEATURES = 2, 64


def trace(lm):
    width = lm.direction(LAYER).shape[0]
    maker = torch.Generator().manual_seed(7)
    encoder = torch.randn(width, FEATURES, generator=maker) / width**0.5
    with lm.trace(PROMPT):
        stream = lm.layers[LAYER].stream
        weights = encoder.to(stream.device)
        features = torch.relu(stream.float() @ weights).save()
        decoded = features[:, :1] @ weights[:, :1].T
        lm.layers[LAYER].stream = stream - decoded.to(stream.dtype)
        logits = lm.logits.save()
    return {"features": features, "logits": logits}
