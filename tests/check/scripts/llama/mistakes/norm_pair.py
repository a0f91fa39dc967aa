"""Of what the final norm returns, the other one."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        normed = model.model.norm.output.save()
    return {"normed": normed}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        normed = model.model.norm.output[1].clone().save()  # mistake: stream
    return {"normed": normed}
