"""Each layer's stream is read as something else that the layer computes."""

from conformance import scenario


def rows(value):
    """[tokens, width] of the only prompt, with or without a tuple and a batch axis."""
    value = value[0] if isinstance(value, tuple) else value
    value = value[0] if value.ndim == 3 else value
    return value.clone()


def attention(layer):
    return layer.self_attn if hasattr(layer, "self_attn") else layer.attn


def first_norm(layer):
    return layer.input_layernorm if hasattr(layer, "input_layernorm") else layer.ln_1


#: What is read instead, from the layer's stream and the outputs of its MLP and attention.
INSTEAD = {
    "mlp_only": lambda stream, mlp, attention: mlp,
    "mlp_missing": lambda stream, mlp, attention: stream - mlp,
    "mlp_twice": lambda stream, mlp, attention: stream + mlp,
    "attention_only": lambda stream, mlp, attention: attention,
    "attention_missing": lambda stream, mlp, attention: stream - attention,
    "residual_twice": lambda stream, mlp, attention: 2 * stream - mlp,
    "doubled": lambda stream, mlp, attention: 2 * stream,
    "embedding_scale": lambda stream, mlp, attention: stream * stream.shape[-1] ** 0.5,
}


def block(lm, kind):
    streams, normed, instead, firsts = {}, {}, {}, {}
    for index, layer in enumerate(lm.layers):
        if kind == "normed" and index:
            normed[index - 1] = rows(first_norm(layer.envoy).output)
        attended = rows(attention(layer.envoy).output) if kind in INSTEAD else None
        mlp = rows(layer.envoy.mlp.output) if kind in INSTEAD else None
        firsts[index] = rows(layer.envoy.output)
        streams[index] = layer.stream
        if kind in INSTEAD:
            instead[index] = INSTEAD[kind](streams[index], mlp, attended)
    last = len(streams) - 1
    read = {
        "normed": {**normed, last: streams[last]},
        "previous": {index: streams[max(index - 1, 0)] for index in streams},
        "next": {index: streams[min(index + 1, last)] for index in streams},
        "first_summand": firsts,
    }
    return {"stream": read.get(kind, instead), "logits": lm.logits}


@scenario(options={"kind": (*INSTEAD, "normed", "previous", "next", "first_summand")})
def parts(lm, case):
    with lm.trace(case.prompts[0]):
        first = block(lm, case.options["kind"]).save()
    with lm.trace(case.prompts[1]):
        second = block(lm, case.options["kind"]).save()
    return [first, second]


@parts.reference
def _(model, case):
    runs = [model.run(prompt) for prompt in case.prompts]
    return [{"stream": run.stream, "logits": run.logits} for run in runs]
