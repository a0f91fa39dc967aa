"""Adding to a stream: to one of the two tensors."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.model.layers[1].output[:] += 0.3  # moves
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.model.layers[1].output[0][:] += 0.3  # moves
        logits = model.logits.clone().save()
    return {"logits": logits}
