"""Logits of every token against the last one's."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        logits = model.lm_head.output.save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        logits = model.logits.clone().save()  # mistake: logits
    return {"logits": logits}
