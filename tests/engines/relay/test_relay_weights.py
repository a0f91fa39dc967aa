"""Weights that live on another stage."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from conformance.engines.vllm.relay.weights import Owners, RemoteWeightError


class _Alone:
    """A column of one stage."""

    def gather(self, obj: Any) -> list[Any]:
        return [obj]


def owners(head: torch.nn.Module, device: str) -> Owners:
    tree: Any = SimpleNamespace(here={"model.head": head}, spanning=frozenset())
    column: Any = _Alone()
    return Owners(column, tree, torch.device(device))


def test_a_fetched_weight_is_the_one_on_its_stage() -> None:
    head = torch.nn.Linear(3, 2).to(torch.bfloat16)
    assert torch.equal(owners(head, "cpu").fetch("model.head", "weight"), head.weight)


def test_a_fetched_weight_is_where_the_stage_computes() -> None:
    """It travels on the host; with a block's own values on a GPU it could not be used there."""
    held = owners(torch.nn.Linear(3, 2), "meta")
    assert held.fetch("model.head", "weight").device.type == "meta"


def test_what_a_block_has_written_to_is_fetched_anew() -> None:
    head = torch.nn.Linear(3, 2)
    held = owners(head, "cpu")
    held.fetch("model.head", "weight").zero_()
    held.forget()
    assert torch.equal(held.fetch("model.head", "weight"), head.weight)


def test_a_weight_that_no_stage_has_is_named() -> None:
    with pytest.raises(RemoteWeightError, match=r"model\.head\.scale"):
        owners(torch.nn.Linear(3, 2), "cpu").fetch("model.head", "scale")
