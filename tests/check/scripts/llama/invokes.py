"""Two invokes of one trace."""


def hf(model):
    with model.trace() as tracer:
        with tracer.invoke("The capital of France is"):
            first = model.model.layers[1].mlp.output[:, -1].clone().save()
        with tracer.invoke("A boat"):
            second = model.model.layers[1].mlp.output[:, -1].clone().save()
    return {"both": [first, second]}


def vllm(model):
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        with tracer.invoke("The capital of France is"):
            first = model.model.layers[1].mlp.output[-1].clone().save()
        with tracer.invoke("A boat"):
            second = model.model.layers[1].mlp.output[-1].clone().save()
    return {"both": [first, second]}
