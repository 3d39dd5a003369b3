"""Constraints between components of a run, checked before it is built."""

import math
import os
from typing import Any

import fiddle as fdl
from torch import nn

from fidgpt.data import ByteTokenizer, GrowingBatch
from fidgpt.graph import ConfigError, Node, parts
from fidgpt.model import LearnedPositions

__all__ = [
    "batch_divides_evenly",
    "norm_eps_is_not_negative",
    "sequences_fit_positions",
    "vocabulary_covers_bytes",
]


def batch_divides_evenly(cfg: fdl.Config) -> None:
    """Raise ConfigError unless the batch size is divisible by the number of processes."""
    processes = os.environ.get("WORLD_SIZE", "1")
    if not processes.isdecimal() or int(processes) < 1:
        raise ValueError(f"WORLD_SIZE={processes} in the environment must be a number from 1 on.")
    world_size = int(processes)
    batch_size = getattr(cfg, "batch_size", None)
    if isinstance(batch_size, int) and batch_size % world_size:
        raise ConfigError(
            f"{batch_size=} cannot be split evenly over {world_size=} processes: choose a "
            f"multiple of {world_size}, for example {-(-batch_size // world_size) * world_size}.",
            place="batch_size",
        )
    for node in _parts_that_call(GrowingBatch, cfg):
        multiple_of = getattr(node.value, "multiple_of", None)
        if isinstance(multiple_of, int) and multiple_of % world_size:
            raise ConfigError(
                f"{node.path}.{multiple_of=}: batches that grow by so many sequences cannot be "
                f"split evenly over {world_size=} processes: choose a multiple of {world_size}.",
                place=node.path,
                sources=[f"{node.path}.multiple_of"],
            )


def vocabulary_covers_bytes(cfg: fdl.Config) -> None:
    """Raise ConfigError if a byte tokenizer has more tokens than the embedding."""
    vocab_size = getattr(cfg, "vocab_size", None)
    for node in _parts_that_call(ByteTokenizer, cfg):
        tokenizer: Any = fdl.build(node.value)
        tokens = tokenizer.vocab_size
        if isinstance(vocab_size, int) and vocab_size < tokens:
            raise ConfigError(
                f"{vocab_size=} is less than the {tokens} tokens of {node.path} (ByteTokenizer): "
                f"set vocab_size to {tokens} or more.",
                place="vocab_size",
                sources=["vocab_size", f"{node.path}.special_tokens"],
            )


def norm_eps_is_not_negative(cfg: fdl.Config) -> None:
    """Raise ConfigError if the eps of a torch norm is negative or not finite."""
    for node in parts(cfg):
        called, eps = fdl.get_callable(node.value), getattr(node.value, "eps", None)
        is_module = isinstance(called, type) and issubclass(called, nn.Module)
        if not is_module or called.__module__.startswith("fidgpt."):  # these validate it
            continue
        if isinstance(eps, float) and not 0 <= eps < math.inf:
            raise ConfigError(
                f"{node.path} ({called.__name__}): {eps=} must be 0 or more, and finite.",
                place=node.path,
                sources=[f"{node.path}.eps"],
            )


def sequences_fit_positions(cfg: fdl.Config) -> None:
    """Raise ConfigError if training sequences are longer than learned positions."""
    seq_len = getattr(cfg, "seq_len", None)
    for node in _parts_that_call(LearnedPositions, cfg):
        learned = node.value.seq_len
        if isinstance(seq_len, int) and isinstance(learned, int) and seq_len > learned:
            raise ConfigError(
                f"{seq_len=} is longer than the {learned} positions of {node.path}: leave "
                f"{node.path}.seq_len unset, so that it is inherited, or shorten the sequences.",
                place="seq_len",
                sources=["seq_len", f"{node.path}.seq_len"],
            )


def _parts_that_call(constructor: Any, cfg: fdl.Config) -> list[Node]:
    return [node for node in parts(cfg) if fdl.get_callable(node.value) is constructor]
