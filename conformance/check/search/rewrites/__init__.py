"""The rewrites that a search tries, each a short function."""

from __future__ import annotations

from conformance.check.search.change import Rewrite
from conformance.check.search.rewrites import (
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
    reads.take_both_of_a_pair,
    reads.take_another_part,
    reads.rename_module,
    reads.take_another_index,
    reads.leave_term,
    reads.add_final_norm,
    axes.drop_batch_index,
    axes.shift_axis,
    axes.leave_axis,
    logits.read_logits,
    logits.multiply_by_head,
    logits.compute_logits,
    logits.split_joined_projections,
    logits.take_other_columns,
    modules.compute_activation,
    modules.scale_embedding,
    requests.ask_greedily,
    requests.move_into_loop,
    requests.drop_condition,
    requests.bound_steps,
    requests.trace_each_prompt,
    writes.write_both_tensors,
    writes.leave_out_write,
    writes.put_back,
    writes.swap_statements,
    writes.write_to_sum,
    writes.cast_written,
    writes.leave_out_cast,
    saves.copy_kept,
    saves.save_used,
    saves.fill_inside,
    saves.key_by_prompt,
    saves.make_inside,
    counterparts.take_counterparts,
)
