"""Replacing a stream: the new value in one tensor, zero in the other."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].output[:, -1] = 0.1  # moves
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.model.layers[1].output[0][-1] = 0.1  # moves
        model.model.layers[1].output[1][-1] = 0  # moves
        logits = model.logits.clone().save()
    return {"logits": logits}
