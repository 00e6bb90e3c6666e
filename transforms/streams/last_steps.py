"""The last step of a stream: on Flink its retries need the same input, on Prism its output needs a consumer."""

from __future__ import annotations

from typing import Any

import apache_beam as beam
from apache_beam.portability import common_urns
from apache_beam.transforms.window import FixedWindows

from ..runners import has_checkpoints, running


def end_quietly(collection: Any) -> None:
    """Give this collection, the output of a last step, a consumer, so that Prism sleeps while a bundle runs.

    Prism (2.77) waits for a bundle's outputs and for its end. If a stage has no outputs, Prism takes them for complete
    and asks for the end without a pause, on a core of its own. So a grouping consumes the outputs; there are none.
    """
    if running(collection.pipeline.runner).spins_without_outputs:
        windows = collection | "Windows" >> beam.WindowInto(FixedWindows(60))
        windows | "Key" >> beam.WithKeys("") | "Group" >> beam.GroupByKey()


def stable_par_do(dofn: beam.DoFn, pipeline: beam.Pipeline) -> beam.ParDo:
    """`beam.ParDo(dofn)`; on Flink with checkpoints, its elements are held until a checkpoint contains them.

    Elsewhere a Reshuffle before it makes them durable, or nothing is retried; other runners refuse the requirement.
    Where the cluster's own configuration alone has it make checkpoints, rows may be written twice
    (docs/how-to/streams.md).
    """
    return _StableParDo(dofn) if has_checkpoints(pipeline.options) else beam.ParDo(dofn)


class _StableParDo(beam.ParDo):
    def to_runner_api_parameter(self, context: Any, **named: Any) -> tuple[str, Any]:
        urn, payload = super().to_runner_api_parameter(context, **named)
        payload.requires_stable_input = True
        context.add_requirement(common_urns.requirements.REQUIRES_STABLE_INPUT.urn)
        return urn, payload
