"""The block leaves a hook of torch on a module."""

from conformance import scenario

from ._parts import observed, read


@scenario()
def hooks(lm, case):
    with lm.trace(case.prompts[0]):
        mlp = lm.layers[0].envoy.mlp._module
        mlp.register_forward_pre_hook(lambda _, given: (given[0] * 2, *given[1:]))
        kept = observed(lm).save()
    return [kept]


hooks.reference(read)
