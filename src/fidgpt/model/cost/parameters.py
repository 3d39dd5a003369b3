"""How many numbers a model holds to learn, and which of them twice."""

from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor, nn

from fidgpt.model.embedding import Embedding, Unembedding
from fidgpt.model.positions import LearnedPositions

_TABLES = (Embedding, Unembedding, LearnedPositions, nn.Embedding)


@dataclass(frozen=True)
class ParameterCount:
    """Numbers to learn; one that several modules hold counts once.

    Attributes:
      total: all of them.
      active: those that one token is computed with: all but the experts that it does not go to.
      embedding: those of the tables of tokens and positions, by which tokens are read or scored.
    """

    total: int
    active: int
    embedding: int

    @property
    def without_embedding(self) -> int:
        """What scaling laws count (Kaplan et al., 2020, arXiv:2001.08361, section 2.1)."""
        return self.total - self.embedding


def count_parameters(model: nn.Module) -> ParameterCount:
    """Counts a model; parts say by `own_idle_parameters()` how many a token has no use for."""
    total = sum(parameter.numel() for parameter in model.parameters())
    tables = {
        parameter
        for module in model.modules()
        if isinstance(module, _TABLES)
        for parameter in module.parameters(recurse=False)
    }
    says = (getattr(module, "own_idle_parameters", None) for module in model.modules())
    idle = sum(say() for say in says if say is not None)
    return ParameterCount(
        total=total, active=total - idle, embedding=sum(table.numel() for table in tables)
    )


def shared_parameters(model: nn.Module) -> dict[str, list[str]]:
    """Every parameter that more than one module holds: its name, and the names it has besides."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(parameter, []).append(name)
    return {first: others for first, *others in names.values() if others}


def bytes_of(tensors: Iterable[Tensor]) -> int:
    """Memory of some tensors; those that are views of one memory count it once."""
    storages = {tensor.untyped_storage() for tensor in tensors}
    return sum(storage.nbytes() for storage in storages)
