"""The last token's logits: `model.logits` is the value itself, [1, vocabulary]."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        value = model.lm_head.output[:, -1].save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        value = model.logits.clone().save()  # moves
    return {"value": value}
