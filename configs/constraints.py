"""What must hold between parts of a run that do not know each other; asked before it is built."""

import os

import fiddle as fdl

from fidgpt.graph import parts
from fidgpt.model import LearnedPositions

__all__ = ["batch_is_dealt_evenly", "sequences_fit_positions"]


def batch_is_dealt_evenly(cfg: fdl.Config) -> None:
    """Raises ValueError unless every process that torchrun started gets as many sequences."""
    said = os.environ.get("WORLD_SIZE", "1")
    if not said.isdecimal() or int(said) < 1:
        raise ValueError(f"WORLD_SIZE={said} in the environment is no number of processes.")
    world_size = int(said)
    batch_size = getattr(cfg, "batch_size", None)
    if isinstance(batch_size, int) and batch_size % world_size:
        raise ValueError(
            f"{batch_size=} cannot be dealt out evenly to {world_size=} processes: choose a "
            f"multiple of {world_size}, for example {-(-batch_size // world_size) * world_size}."
        )


def sequences_fit_positions(cfg: fdl.Config) -> None:
    """Raises ValueError where a training sequence is longer than the table of its positions."""
    seq_len = getattr(cfg, "seq_len", None)
    for node in parts(cfg):
        if fdl.get_callable(node.value) is not LearnedPositions:
            continue
        learned = node.value.seq_len
        if isinstance(seq_len, int) and isinstance(learned, int) and seq_len > learned:
            raise ValueError(
                f"{seq_len=} is longer than the {learned} positions that {node.path} learns: "
                f"leave {node.path}.seq_len open, so that it follows, or shorten the sequences."
            )
