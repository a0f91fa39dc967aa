"""A batch of prompts: an `invoke` for each, which fills its own key of a saved dict."""

PROMPTS = ["The capital of France is", "A small boat"]


def hf(model):
    with model.trace(PROMPTS):  # moves
        last = model.model.layers[2].mlp.output[:, -1].save()
    return {"last": list(last)}


def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        last = {}.save()
        for number, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):  # moves
                last[number] = model.model.layers[2].mlp.output[-1].clone()
    return {"last": [last[number] for number in range(len(PROMPTS))]}
