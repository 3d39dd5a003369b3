"""What each process of a pipeline has and does, before a run begins."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from torch import nn

from fidgpt.parallel import PIPELINE, DataParallel, MeshSizes, PipelineParallel


@dataclass(frozen=True, kw_only=True)
class StageFacts:
    """The stages of a process.

    Attributes:
      layers: the first layer of each, and the one after its last.
      flops: their share of the operations of the model.
      weights: the fraction of the parameters that the process holds, of those of the pipeline.
      activations: how many times the activations of a micro-batch it keeps at most.
      memory: bytes at the peak.
    """

    layers: tuple[tuple[int, int], ...]
    flops: float
    weights: float
    activations: float
    memory: int = 0


@dataclass(frozen=True, kw_only=True)
class PipelineFacts:
    """A pipeline.

    Attributes:
      processes: of it.
      bubble: the share of their time in which they wait for each other in a step.
    """

    processes: tuple[StageFacts, ...]
    bubble: float

    def with_memory(self, peaks: Sequence[int]) -> "PipelineFacts":
        """Return the same with the memory of each process."""
        pairs = zip(self.processes, peaks, strict=True)
        return replace(self, processes=tuple(replace(one, memory=peak) for one, peak in pairs))


def pipeline_facts(
    parallel: DataParallel, model: nn.Module, mesh: MeshSizes, *, num_micro_batches: int
) -> PipelineFacts | None:
    """Return what is known of the pipeline of a run; None if it has none, or cannot run."""
    part, size = parallel.parts.get(PIPELINE.name), mesh.sizes.get(PIPELINE.name, 1)
    if size == 1 or not isinstance(part, PipelineParallel):
        return None
    stages, total = part.cut(size), sum(part.cut(size).costs)
    try:
        activations = part.parts_of_activations(size, num_micro_batches)
    except ValueError:  # of too few micro-batches, as constraints report
        return None
    weights = part.parts_of_weights(model, size)
    processes = [
        StageFacts(
            layers=tuple((stages.begins[s], stages.begins[s + 1]) for s in stages.own(rank)),
            flops=sum(stages.costs[s] for s in stages.own(rank)) / total,
            weights=weights[rank],
            activations=activations[rank],
        )
        for rank in range(size)
    ]
    bubble = part.timeline(size, num_micro_batches).bubble
    return PipelineFacts(processes=tuple(processes), bubble=bubble)
