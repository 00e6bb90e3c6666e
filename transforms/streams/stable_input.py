"""A ParDo whose input stays the same when it is retried: for effects outside of the pipeline.

Knows how the runners say it: Beam's Python SDK has no word for it.
"""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.portability import common_urns

from ..requests.flink_options import has_checkpoints


def stable_par_do(dofn: beam.DoFn, pipeline: beam.Pipeline) -> beam.ParDo:
    """`beam.ParDo(dofn)`; on Flink with checkpoints, one whose elements are held until a checkpoint has them.

    Elsewhere a Reshuffle before it makes them durable, or nothing is retried; other runners refuse the requirement.
    Where the cluster's own configuration alone has it make checkpoints, rows may be written twice (docs/STREAMS.md).
    """
    return _StableParDo(dofn) if has_checkpoints(pipeline.options) else beam.ParDo(dofn)


class _StableParDo(beam.ParDo):
    def to_runner_api_parameter(self, context: Any, **named: Any) -> tuple[str, Any]:
        urn, payload = super().to_runner_api_parameter(context, **named)
        payload.requires_stable_input = True
        context.add_requirement(common_urns.requirements.REQUIRES_STABLE_INPUT.urn)
        return urn, payload
