"""Steps of many configs on a GPU that is not there: the script that runs them, and its cases.

Prints what each case does that a step on a GPU should not, as JSON.
"""

import itertools
import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import fake_cuda

if __name__ == "__main__":
    fake_cuda.register(Path(sys.argv[1]))

import fiddle as fdl
import gpu_step
from small_models import FAMILIES, OF_MIXTURES, apply, shrunk

from fidgpt import configs, fiddlers, train
from fidgpt.graph import ConfigError

Change = Callable[[fdl.Config], object]
# Fused kernels, compilers and libraries are not there either.
LEFT_OUT = {"use_float8": "needs torchao and a GPU"}
FUSED_ALL_REDUCE = "c10d::allreduce in processes/fused.py:start"
BALANCE = "c10d::allreduce in train/step.py:totals"


class Case(NamedTuple):
    """A config, the processes it is for, and what its step may do.

    Attributes:
      make: returns the config; ConfigError if there is none.
      world_size: number of processes.
      waits: number of times that Python may wait for the device.
      extra: collectives beside those of gradients, weights, blocks and optimizers.
    """

    make: Callable[[], fdl.Config]
    world_size: int = 1
    waits: int = 0
    extra: Mapping[str, int] = {}


def small(name: str, *changes: Change, narrow: bool = True) -> fdl.Config:
    """A small config of a name, in bfloat16 or float32, changed."""
    cfg = configs.debug() if name == "debug" else shrunk(name)
    if narrow:
        cfg.precision = fdl.Config(train.BFloat16)
    for change in changes:
        change(cfg)
    return cfg


def fiddled(config: str, name: str) -> fdl.Config:
    """A config that a fiddler was applied to, as small as before."""
    cfg = small(config)
    if name in OF_MIXTURES and config == "debug":
        fiddlers.use_moe(cfg)
    size, depth = cfg.model.hidden_dim, cfg.model.num_layers
    apply(cfg, name)
    if name.startswith("make_"):
        cfg.model.hidden_dim, cfg.model.num_layers = size, min(depth, 2)
    if name == "use_hsdp":
        cfg.parallel.mesh.shard = 1
    if name == "use_compile":
        cfg.model.compile.backend = "eager"
    for key, most in {"seq_len": 64, "batch_size": 4}.items():
        if isinstance(value := getattr(cfg, key), int):
            setattr(cfg, key, min(value, most))
    return cfg


def all_configs(*, is_long: bool) -> Iterator[tuple[str, Case]]:
    """Every named config in bfloat16, or some."""
    for number, name in enumerate(configs.__all__):
        if is_long or number % 20 == 0:
            yield name, Case(partial(small, name))


def all_fiddlers(*, is_long: bool) -> Iterator[tuple[str, Case]]:
    """Every fiddler on `debug`, or some; on one config of each family if `is_long`."""
    for number, name in enumerate(fiddlers.__all__):
        guards = {"use_skip_step", "use_divergence_skip", "use_roll_back", "use_float16"}
        for config in ("debug", *(FAMILIES if is_long else ())):
            is_due = is_long or number % 20 == 0 or name in guards
            if is_due and name not in LEFT_OUT:
                waits = int(name in guards)
                yield f"{name} on {config}", Case(partial(fiddled, config, name), waits=waits)


def accumulate(cfg: fdl.Config) -> None:
    """Compute the two rows of each process one by one."""
    cfg.micro_batch_size = 1


def mesh(**sizes: int) -> Change:
    """Divide over a mesh."""
    return partial(fiddlers.use_mesh, **sizes)


def together(*changes: Change) -> Change:
    """Apply several changes."""

    def change(cfg: fdl.Config) -> None:
        for one in changes:
            one(cfg)

    return change


FEATURES: dict[str, Change] = {
    "accumulation": accumulate,
    "average": fiddlers.use_ema,
    "muon": fiddlers.use_muon,
    "value clipping": fiddlers.use_value_clipping,
    "z-loss": fiddlers.use_z_loss,
    "documents": fiddlers.use_document_mask,
    "predictions": fiddlers.use_mtp,
    "experts": partial(fiddlers.use_moe, num_experts=4),
    "guard": fiddlers.use_skip_step,
    "recomputation": fiddlers.use_recompute,
    "shared blocks": fiddlers.share_blocks,
}
# Processes, those of them that read other rows, and what divides the work among them.
PARALLEL: dict[str, tuple[int, int, Change]] = {
    "alone": (1, 1, together()),
    "replicas": (2, 2, together()),
    "shards": (2, 2, fiddlers.use_fsdp),
    "hybrid": (4, 4, partial(fiddlers.use_hsdp, num_shards=2)),
    "tensor": (2, 1, mesh(tensor=2)),
    "sequence": (2, 1, together(mesh(tensor=2), fiddlers.use_sequence_parallel)),
    "context": (2, 1, mesh(context=2)),
    "ulysses": (2, 1, together(mesh(context=2), fiddlers.use_ulysses)),
    "all axes": (16, 4, mesh(replicate=2, shard=2, context=2, tensor=2)),
}


def featured(names: Sequence[str], place: str) -> fdl.Config:
    """`debug` with features, on some processes."""
    _, data_size, change = PARALLEL[place]
    cfg = small("debug", *(FEATURES[name] for name in names), change)
    cfg.batch_size, cfg.model.blocks[0].attention.head_dim = 2 * data_size, 8
    return cfg


def all_features(*, is_long: bool) -> Iterator[tuple[str, Case]]:
    """Features alone, in pairs and together, on every kind of mesh, or some of these."""
    alone, pairs = itertools.combinations(FEATURES, 1), itertools.combinations(FEATURES, 2)
    everything = tuple(name for name in FEATURES if name not in ("guard", "muon"))
    many = [*alone, *pairs, everything]
    for place, (world_size, _, _) in PARALLEL.items():
        few = {"replicas": [everything], "context": [("documents", "predictions")]}.get(place, [])
        few += [()] if place in ("shards", "sequence", "all axes") else []
        for names in [(), *many] if is_long else few:
            extra = {FUSED_ALL_REDUCE: 1} if world_size > 1 else {}
            if "experts" in names and world_size > 1 and place not in ("tensor", "sequence"):
                # The load of the whole batch is a factor of the gradients.
                where = FUSED_ALL_REDUCE if "accumulation" in names else BALANCE
                extra[where] = extra.get(where, 0) + 1
            case = Case(partial(featured, names, place), world_size, int("guard" in names), extra)
            yield f"{' and '.join(names) or 'nothing'} on {place}", case


SECTIONS = {"configs": all_configs, "fiddlers": all_fiddlers, "features": all_features}


def problem(case: Case) -> str:
    """Return what is wrong with a step; empty if nothing is."""
    try:
        cfg = case.make()
    except ConfigError:
        return ""  # which other tests look at
    try:
        taken = gpu_step.take(cfg, world_size=case.world_size, rank=case.world_size - 1)
    except ConfigError:
        return ""
    except Exception as error:
        if "FIDGPT_TRACE" in os.environ:
            traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0][:300]
    if sum(taken.waits.values()) != case.waits:
        return f"waits {dict(taken.waits)}"
    return "" if taken.extra == case.extra else f"communicates {dict(taken.extra)}"


def main(section: str, tier: str, *words: str) -> None:
    """Run the cases of a section, or of all, whose names contain all words."""
    sections = SECTIONS.values() if section == "all" else [SECTIONS[section]]
    cases = dict(itertools.chain(*(made(is_long=tier == "long") for made in sections)))
    wrong: dict[str, str] = {}
    for name in (one for one in cases if all(word in one for word in words)):
        if found := problem(cases[name]):
            wrong[name] = found
            print(f"{name}: {found}", file=sys.stderr, flush=True)
    launches = gpu_step.take(small("debug")).launches.total()
    print(json.dumps({"cases": len(cases), "wrong": wrong, "launches": launches}))


if __name__ == "__main__":
    main(*sys.argv[2:])
