"""Constraints between components of a run, checked before it is built."""

import math
import os
from typing import Any

import fiddle as fdl
import torch
from torch import nn

from fidgpt.data import ByteTokenizer
from fidgpt.graph import ConfigError, Node, computed, parts
from fidgpt.graph.fiddle import raw_arguments
from fidgpt.model import KimiDeltaNet, LatentAttention, LearnedPositions, LoRALinear, StackedLoRA
from fidgpt.optim import Adafactor, Muon, NorMuon, mup_groups
from fidgpt.parallel import CONTEXT, PIPELINE, DataParallel, Mesh, MeshSizes, fitting
from fidgpt.train import PipelineStep, PreferenceStep

__all__ = [
    "batch_fills_the_mesh",
    "micro_batches_fill_the_pipeline",
    "mup_fits_the_model",
    "mup_fits_the_optimizer",
    "norm_eps_is_not_negative",
    "preferences_have_whole_sequences",
    "sequences_fit_positions",
    "vocabulary_covers_bytes",
]


# Optimizers whose updates follow the width: as gradients do (of RAdam, in its first five steps),
# from an eps that is larger than their squares, or as the weights.
_BY_GRADIENT = (torch.optim.SGD, torch.optim.ASGD, torch.optim.RAdam, torch.optim.Adadelta)
_BY_WIDTH = (*_BY_GRADIENT, torch.optim.Adafactor, Adafactor, NorMuon)
# Components with matrices whose inputs are a low rank: kv_rank, query_rank, a head's size, or that
# of adapters. Of those, only the rate of A falls with the width (Hayou, Ghosh and Yu, 2024,
# arXiv:2402.12354, section 3).
_LOW_RANKS = (LatentAttention, KimiDeltaNet, LoRALinear, StackedLoRA)


def batch_fills_the_mesh(cfg: fdl.Config) -> None:
    """Raise ConfigError unless the processes fill the mesh, and the batch has rows for each."""
    mesh = _mesh(cfg, _world_size())
    if mesh is None:
        return
    count, world_size = mesh.data_size, mesh.size
    over = f"{world_size=} processes" if count == world_size else f"{count} replicas and shards"
    batch_size = computed(getattr(cfg, "batch_size", None))
    if isinstance(batch_size, int) and batch_size < count:
        raise ConfigError(
            f"{batch_size=} sequences are too few for {over}, of which each needs at least one: "
            f"choose {count} or more, or start fewer processes.",
            place="batch_size",
        )


def micro_batches_fill_the_pipeline(cfg: fdl.Config) -> None:
    """Raise ConfigError if a step has too few micro-batches for the schedule of its pipeline."""
    mesh = _mesh(cfg, _world_size())
    step: Any = getattr(cfg, "step", None)
    batch_size = computed(getattr(cfg, "batch_size", None))
    if mesh is None or mesh[PIPELINE] == 1 or not isinstance(batch_size, int):
        return
    if not _is_step(step, PipelineStep):
        return
    rows = batch_size // mesh.data_size
    size = computed(getattr(cfg, "micro_batch_size", None))
    if not rows or (isinstance(size, int) and size < 1):
        return  # other checks report that
    number = -(-rows // size) if isinstance(size, int) else 1
    try:
        built: Any = fdl.build(step)
    except ValueError:
        return  # the part that refuses its arguments reports that
    try:
        fitting(built.schedule, mesh[PIPELINE], number)
    except ValueError as error:
        raise ConfigError(
            f"micro_batch_size={size}: {error}",
            place="micro_batch_size",
            sources=["micro_batch_size", "batch_size", "parallel.mesh.pipeline", "step.schedule"],
        ) from None


def preferences_have_whole_sequences(cfg: fdl.Config) -> None:
    """Raise ConfigError if processes share the sequences of pairs, which are scored as a whole."""
    mesh, step = _mesh(cfg, _world_size()), getattr(cfg, "step", None)
    if mesh is not None and mesh[CONTEXT] > 1 and _is_step(step, PreferenceStep):
        raise ConfigError(
            f"preferences need whole sequences, which context={mesh[CONTEXT]} processes would "
            "share: use context=1, and shard or tensor for several processes.",
            place="step",
            sources=["parallel.mesh.context", "step"],
        )


def _is_step(step: Any, kind: type) -> bool:
    """Return whether a step of a config is of a kind."""
    function: Any = fdl.get_callable(step) if isinstance(step, fdl.Buildable) else None
    return isinstance(function, type) and issubclass(function, kind)


def _world_size() -> int | None:
    """Return the number of processes; None if it is not known."""
    processes = os.environ.get("WORLD_SIZE")
    if processes is not None and (not processes.isdecimal() or int(processes) < 1):
        raise ValueError(f"WORLD_SIZE={processes} in the environment must be a number from 1 on.")
    return None if processes is None else int(processes)


def _mesh(cfg: fdl.Config, world_size: int | None) -> MeshSizes | None:
    """Return the mesh of the processes, or of the fewest possible ones if they are not known."""
    try:
        part = getattr(cfg, "parallel", None)
        parallel = fdl.build(part) if isinstance(part, fdl.Buildable) else None
    except (TypeError, ValueError):  # is reported by the check of its constructor
        return None
    if not isinstance(parallel, DataParallel):
        return None if world_size is None else Mesh(replicate=world_size)
    try:
        return parallel.layout(parallel.planned_size if world_size is None else world_size)
    except ValueError as error:
        sizes = [f"parallel.mesh.{name}" for name in Mesh().sizes]
        raise ConfigError(str(error), place="parallel", sources=sizes) from None


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
        called, eps = fdl.get_callable(node.value), raw_arguments(node.value).get("eps")
        is_module = isinstance(called, type) and issubclass(called, nn.Module)
        if not is_module or called.__module__.startswith("fidgpt."):  # these validate it
            continue
        if isinstance(eps, float) and not 0 <= eps < math.inf:
            raise ConfigError(
                f"{node.path} ({called.__name__}): {eps=} must be 0 or more, and finite.",
                place=node.path,
                sources=[f"{node.path}.eps"],
            )


def mup_fits_the_model(cfg: fdl.Config) -> None:
    """Raise ConfigError if the model has matrices whose inputs need not grow with the width.

    Each matrix needs the ratio of its own inputs to those at the base width (Yang et al., 2022,
    arXiv:2203.03466, table 8), and `mup_groups` and `MuP` take the ratio of the widths for all.
    """
    if not _parts_that_call(mup_groups, cfg):
        return
    for node in parts(cfg):
        called = fdl.get_callable(node.value)
        if isinstance(called, type) and issubclass(called, _LOW_RANKS):
            raise ConfigError(
                f"use_mup scales rates and initial weights of all matrices by the width, and "
                f"{called.__name__} has some whose inputs are a low rank, which need not grow with "
                "it: use a mixer without low ranks, such as Attention or GatedDeltaNet, or leave "
                "out use_mup. use:groups=decay_matrices trains adapters of a model that began with "
                "it, whose scales stay.",
                place=node.path,
                sources=[node.path, "groups"],
            )


def mup_fits_the_optimizer(cfg: fdl.Config) -> None:
    """Raise ConfigError if muP's factors are wrong for the updates of the optimizer.

    They suit updates whose elements have the size of the learning rate at any width: Adam's,
    and Muon's if scaled to match Adam's. NorMuon brings each update to the norm of an
    orthogonal matrix: in a batch of fewer tokens than the width, its rank does not grow with it.
    """
    optimizer = getattr(cfg, "optimizer", None)
    if not isinstance(optimizer, fdl.Buildable) or not _parts_that_call(mup_groups, cfg):
        return
    function: Any = fdl.get_callable(optimizer)
    is_original = function is Muon and getattr(optimizer, "adjust_lr_fn", None) == "original"
    if is_original or function in _BY_WIDTH:
        which = f"{function.__name__}{'(adjust_lr_fn=original)' if is_original else ''}"
        raise ConfigError(
            f"use_mup scales learning rates for updates of one size at any width, and those of "
            f"{which} grow or shrink with the width: use AdamW, Lion, schedule-free AdamW or Muon "
            "with adjust_lr_fn=match_rms_adamw, or leave out use_mup.",
            place="optimizer",
            sources=["optimizer", "groups"],
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
