"""A write that is made in the first step only."""

import torch

VECTOR = torch.randn(256, generator=torch.Generator().manual_seed(3))


def hf(model):
    with model.generate("The capital of France is", max_new_tokens=3) as tracer:
        logits = [].save()
        for _ in tracer.iter[:3]:
            model.model.layers[2].output[:] += 4.0 * VECTOR.to(model.model.layers[2].output.dtype)
            logits.append(model.lm_head.output[:, -1].clone())
    return {"logits": logits}


def vllm(model):
    with model.trace("The capital of France is", temperature=0.0, max_tokens=3) as tracer:
        logits = [].save()
        for step in tracer.iter[:3]:
            if step == 0:  # mistake: dropped
                first = model.model.layers[2].output[0]
                first[:] += 4.0 * VECTOR.to(first.dtype)
            logits.append(model.logits.clone())
    return {"logits": logits}
