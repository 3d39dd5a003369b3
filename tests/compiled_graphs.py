"""Models as torch.compile sees them: how many graphs it makes of them, and what breaks one.

Nothing is compiled: graphs are computed as they are.
"""

from collections.abc import Callable
from typing import Any

import fiddle as fdl
import torch
from small_models import shrunk, started
from torch._dynamo.utils import counters

from fidgpt import configs, fiddlers, graph
from fidgpt.model import flex, wrappers
from fidgpt.train.loss import NextToken

# Sequences and tokens of each pass: the same again, shorter ones, more of them, and the first.
SIZES = ((2, 33), (2, 33), (2, 17), (3, 33), (2, 33))


def objective(name: str, *changes: Callable[[fdl.Config], object]) -> NextToken:
    """Return a small model of a named config with its loss."""
    cfg = configs.debug() if name == "debug" else shrunk(name)
    for change in changes:
        change(cfg)
    with torch.device("meta"):
        trainer: Any = graph.build(cfg)
    torch._dynamo.reset()
    counters.clear()
    wrappers._compiled.cache_clear()
    return NextToken(started(trainer.model), trainer.loss).train()


def tokens(rows: int, window: int) -> torch.Tensor:
    """Return different tokens every time."""
    return torch.randint(0, 257, (rows, window))


def compiling(cfg: fdl.Config) -> None:
    """Compile blocks."""
    fiddlers.use_compile(cfg)
    cfg.model.compile.backend = "eager"


def flexing(cfg: fdl.Config) -> None:
    """Attend within documents, by FlexAttention."""
    fiddlers.use_document_mask(cfg)
    for block in [*cfg.model.first_blocks, *cfg.model.blocks]:
        block.attention.kernel = flex


def graphs_of_blocks(name: str, *changes: Callable[[fdl.Config], object]) -> list[int]:
    """Return how many graphs there are after passes forward and backward of each size."""
    made, counts = objective(name, *changes, compiling), []
    for size in SIZES:
        made(tokens(*size)).backward()
        counts.append(counters["stats"]["unique_graphs"])
    assert not counters["graph_break"], (name, counters["graph_break"])
    return counts


def require_few(name: str, *changes: Callable[[fdl.Config], object]) -> None:
    """Raise unless blocks have new graphs for a new size only, and as many for each."""
    first, again, shorter, more, last = graphs_of_blocks(name, *changes)
    counts = (again - first, shorter - again, more - shorter, last - more)
    assert counts == (0, first, first, 0), f"{name}: {first} graphs at first, then {counts}"


def require_one(name: str, *changes: Callable[[fdl.Config], object]) -> None:
    """Raise unless all of a model and its loss are one graph."""
    made = objective(name, *changes)
    # The loss differentiates a chunk at a time, which torch does not trace by default.
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        whole: Any = torch.compile(made, backend="eager", fullgraph=True)
        for _ in range(2):
            whole(tokens(2, 33)).backward()
    assert counters["stats"]["unique_graphs"] == 1, (name, counters["stats"])


def require_flex(name: str) -> None:
    """Raise unless all of a model is one graph with FlexAttention, which a CPU only evaluates."""
    made = objective(name, flexing).requires_grad_(False)
    whole: Any = torch.compile(made.model.features, backend="eager", fullgraph=True)
    whole(tokens(2, 128))
    whole(tokens(2, 128))
    assert counters["stats"]["unique_graphs"] == 1, (name, counters["stats"])


def require_fused(name: str) -> None:
    """Raise unless a model and its loss are one graph, with torch's own loss."""
    made = objective(name, fiddlers.use_fused_loss)
    whole: Any = torch.compile(made, backend="eager", fullgraph=True)
    whole(tokens(2, 33)).backward()


def require_schedules() -> None:
    """Raise unless growing batches and sequences have one set of graphs for each of their sizes."""
    made = objective("debug", compiling)
    sizes = [(rows, window) for rows in (1, 2, 4) for window in (9, 17, 33)]
    for size in sizes:
        made(tokens(*size)).backward()
    counted = counters["stats"]["unique_graphs"]
    for size in sizes:
        made(tokens(*size)).backward()
    assert counted == counters["stats"]["unique_graphs"], counters["stats"]
