"""Random programs of reads, writes and forced tokens give the same at one stage and at two."""

import os

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from relay_compare import same_on
from relay_lab import Lab, Spec

pytestmark = pytest.mark.engine

ONE, TWO = Spec("llama-4", 1), Spec("llama-4", 2)
LAYERS = 4

#: Exact in bf16, so that what a program does is easy to follow when it is shrunk.
FACTORS = st.sampled_from([-1.0, -0.5, 0.0, 0.25, 0.5, 2.0])


@st.composite
def step(draw):
    """What a block does in one step, in the order of the model."""
    operations = []
    for layer in range(LAYERS):
        kinds = st.lists(st.sampled_from(["read", "add", "put", "scale"]), max_size=2)
        operations += [
            (kind, layer, draw(st.integers(0, 1)), draw(FACTORS)) for kind in draw(kinds)
        ]
    if draw(st.booleans()):
        operations.append(("logits", 0, 0, 0.0))
    if draw(st.integers(0, 3)) == 0:
        operations.append(("force", 0, 0, float(draw(st.integers(3, 500)))))
    return operations


@st.composite
def invoke(draw):
    prompt = draw(st.lists(st.integers(3, 511), min_size=1, max_size=7))
    program = draw(st.lists(step(), min_size=1, max_size=4))
    return prompt, len(program), program


PROGRAM = st.lists(invoke(), min_size=1, max_size=3)
WANTED = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@settings(max_examples=25, **WANTED)
@given(program=PROGRAM)
def test_random_programs(lab: Lab, program):
    same_on(lab.engine(ONE), lab.engine(TWO), "random_program", program)


@pytest.mark.slow
@settings(max_examples=int(os.environ.get("RELAY_PROGRAMS", "200")), **WANTED)
@given(program=PROGRAM)
def test_many_random_programs(lab: Lab, program):
    same_on(lab.engine(ONE), lab.engine(TWO), "random_program", program)
