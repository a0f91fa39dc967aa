"""Token 0 is ablated instead of all."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        model.transformer.h[1].output[0][:] = 0
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.transformer.h[1].output[0][:] = 0  # mistake: partial
        logits = model.logits.clone().save()
    return {"logits": logits}
