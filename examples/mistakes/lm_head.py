"""The head is read as a module, which vLLM does not call."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        logits = model.lm_head.output[:, -1].save()
    return {"logits": logits}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        logits = model.lm_head.output[:, -1].save()  # mistake: error
    return {"logits": logits}
