"""Attribution by gradients, which vLLM does not compute."""

PROMPT = "The capital of France is"


def hf(model):
    with model.trace(PROMPT):
        hidden = model.model.layers[1].output
        hidden.requires_grad_()
        with model.lm_head.output[0, -1].max().backward():
            gradient = hidden.grad.clone().save()
    return {"gradient": gradient}


def vllm(model):
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        hidden = model.model.layers[1].output[0]
        hidden.requires_grad_()
        with model.logits[-1].max().backward():  # mistake: error, no edit
            gradient = hidden.grad.clone().save()
    return {"gradient": gradient}
