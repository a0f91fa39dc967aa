"""The rewrites that a search tries, each a short function."""

from __future__ import annotations

from conformance.check.search.change import Rewrite
from conformance.check.search.rewrites import (
    accessors,
    axes,
    counterparts,
    logits,
    modules,
    reads,
    requests,
    saves,
    writes,
)

REWRITES: tuple[Rewrite, ...] = (
    reads.take_another_tensor,
    reads.take_another_part,
    reads.rename_module,
    reads.take_another_index,
    axes.drop_batch_index,
    axes.shift_axis,
    axes.leave_axis,
    logits.read_logits,
    logits.multiply_by_head,
    logits.compute_logits,
    logits.split_joined_projections,
    logits.take_other_columns,
    modules.take_engine_layers,
    modules.compute_activation,
    modules.scale_embedding,
    accessors.take_accessor,
    requests.ask_greedily,
    requests.bound_steps,
    requests.trace_each_prompt,
    writes.write_both_tensors,
    writes.change_no_copy,
    writes.write_into_tensor,
    writes.put_back_sum,
    writes.swap_statements,
    saves.copy_kept,
    saves.save_used,
    saves.fill_inside,
    saves.call_below,
    saves.key_by_prompt,
    saves.make_inside,
    counterparts.take_counterparts,
)
