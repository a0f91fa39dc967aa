"""Every token's logits: multiply what the final norm gives by the head's weights."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        value = model.lm_head.output.save()  # moves
    return {"value": value}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        value = (model.model.norm.output[0] @ model.lm_head.weight.T).save()  # moves
    return {"value": value}
