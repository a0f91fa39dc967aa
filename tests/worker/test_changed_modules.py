"""What a block leaves otherwise in the modules that compute: weights, hooks, the modules."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
import torch
from torch import nn

from conformance.worker import modules, surroundings

Change = Callable[[nn.Sequential], object]


def model() -> nn.Sequential:
    found = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 3, bias=False))
    found.register_buffer("loaded", torch.ones(4))
    found.register_buffer("computed", torch.ones(4), persistent=False)
    found[1].weight = nn.Parameter(torch.ones(8, 3).T)  # does not lie in a row
    return found.to(torch.bfloat16)


def changed(of: nn.Sequential, change: Change) -> list[str]:
    before = surroundings.surroundings(model=of)
    change(of)
    gc.collect()
    after = surroundings.surroundings(model=of)
    names = {modules.HOOKS, modules.MODULES, modules.WEIGHTS, modules.BUFFERS}
    return [name for name in surroundings.changes(before, after) if name in names]


def _in_place(of: nn.Sequential) -> None:
    with torch.no_grad():
        of[0].weight.mul_(2)


def _same_again(of: nn.Sequential) -> None:
    """Nothing is otherwise but the version."""
    with torch.inference_mode():
        of[0].weight.mul_(1)


def _around_the_version(of: nn.Sequential) -> None:
    of[0].bias.data.add_(1)


def _in_columns(of: nn.Sequential) -> None:
    of[1].weight.data.mul_(2)


def _another_weight(of: nn.Sequential) -> None:
    of[0].weight = nn.Parameter(of[0].weight.detach().clone())


def _other_values(of: nn.Sequential) -> None:
    of[0].bias.data = torch.zeros(8, dtype=torch.bfloat16)


def _loaded_buffer(of: nn.Sequential) -> None:
    of.loaded = torch.zeros(4)


def _computed_buffer(of: nn.Sequential) -> None:
    of.computed.zero_()


def _another_module(of: nn.Sequential) -> None:
    of[1] = nn.Linear(8, 3, bias=False)


def _module_less(of: nn.Sequential) -> None:
    del of[1]


def _forward(of: nn.Sequential) -> None:
    of[0].forward = lambda value: value


def _hook_in_another_place(of: nn.Sequential) -> None:
    of[0].register_forward_hook(lambda *_: None).remove()
    of[1].register_forward_pre_hook(lambda *_: None)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (_in_place, modules.WEIGHTS),
        (_same_again, modules.WEIGHTS),
        (_around_the_version, modules.WEIGHTS),
        (_in_columns, modules.WEIGHTS),
        (_another_weight, modules.WEIGHTS),
        (_other_values, modules.WEIGHTS),
        (_loaded_buffer, modules.WEIGHTS),
        (_computed_buffer, modules.BUFFERS),
        (lambda of: of[0].register_parameter("more", nn.Parameter(torch.ones(1))), modules.WEIGHTS),
        (_forward, modules.MODULES),
        (lambda of: of[0].register_forward_hook(lambda *_: None), modules.HOOKS),
        (lambda of: of[0].register_full_backward_hook(lambda *_: None), modules.HOOKS),
        (_hook_in_another_place, modules.HOOKS),
    ],
)
def test_what_a_block_leaves_in_the_modules_is_named(change: Change, named: str) -> None:
    assert changed(model(), change) == [named]


@pytest.mark.parametrize("change", [_another_module, _module_less])
def test_another_module_in_its_place_is_named(change: Change) -> None:
    assert modules.MODULES in changed(model(), change)


def test_a_hook_on_every_module_is_named() -> None:
    handles = []

    def change(_: nn.Sequential) -> None:
        handles.append(nn.modules.module.register_module_forward_hook(lambda *_: None))

    try:
        assert changed(model(), change) == [modules.HOOKS]
    finally:
        handles[0].remove()


def _computes(of: nn.Sequential) -> None:
    value = of(torch.ones(2, 8, dtype=torch.bfloat16))
    value.sum().backward()


def _hook_for_a_while(of: nn.Sequential) -> None:
    of[0].register_forward_hook(lambda *_: None).remove()


def _hook_of_the_engine(of: nn.Sequential) -> None:
    """As transformers hangs up when it is asked for hidden states, for good."""

    def hook(*_: object) -> None: ...

    hook.__module__ = "transformers.utils.output_capturing"
    of[0].register_forward_hook(hook)


def _computed_anew(of: nn.Sequential) -> None:
    """As transformers does for a prompt that is longer than those before it."""
    of.register_buffer("computed", torch.zeros(9), persistent=False)


@pytest.mark.parametrize(
    "change", [_computes, _hook_for_a_while, _hook_of_the_engine, _computed_anew]
)
def test_what_an_honest_cell_does_is_none(change: Change) -> None:
    assert changed(model(), change) == []


def test_a_large_weight_is_looked_at_in_samples() -> None:
    large = nn.Sequential(nn.Linear(4096, 1024, bias=False).to(torch.bfloat16))
    held = modules.state(large)[modules.WEIGHTS]["0.weight"]
    assert 0 < len(held.values) < large[0].weight.nbytes / 3

    def change(of: nn.Sequential) -> None:
        of[0].weight.data.mul_(2)

    assert changed(large, change) == [modules.WEIGHTS]


def test_what_cannot_be_looked_at_counts_by_its_version() -> None:
    with torch.device("meta"):
        absent = nn.Sequential(nn.Linear(4, 4))
    assert changed(absent, lambda _: None) == []
    with torch.inference_mode():
        made = nn.Sequential(nn.Linear(4, 4))
    assert changed(made, lambda _: None) == []
