"""Steps of many configs on a GPU that is not there: the script that runs them, and its cases.

Prints what each case does that a step on a GPU should not, as JSON.
"""

import json
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import fake_cuda

if __name__ == "__main__":
    fake_cuda.register(Path(sys.argv[1]))

import fiddle as fdl
import gpu_step
from small_models import FAMILIES, OF_MIXTURES, apply, shrunk

from fidgpt import configs, fiddlers, train
from fidgpt.graph import ConfigError

# A fused kernel that needs torchao and a GPU; and meshes, whose processes are not there.
LEFT_OUT = {"use_float8"}
GUARDS = {"use_skip_step", "use_divergence_skip", "use_roll_back", "use_float16"}
QUICK = {"use_muon", "use_moe", "use_mla", "use_mtp", "use_packing", "use_document_mask", *GUARDS}


def small(name: str) -> fdl.Config:
    """A small config of a name, in bfloat16."""
    cfg = configs.debug() if name == "debug" else shrunk(name)
    cfg.precision = fdl.Config(train.BFloat16)
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


def cases(*, is_long: bool) -> Iterator[tuple[str, Callable[[], fdl.Config], int]]:
    """Yield the name of each case, its config, and how often its step waits for the device."""
    for name in (*FAMILIES, "debug") if is_long else ("debug", "llama3_2_1b"):
        yield name, partial(small, name), 0
    for name in fiddlers.__all__:
        if name not in LEFT_OUT and (is_long or name in QUICK):
            yield f"{name} on debug", partial(fiddled, "debug", name), int(name in GUARDS)


def problem(make: Callable[[], fdl.Config], waits: int) -> str:
    """Return what is wrong with a step; empty if nothing is."""
    try:
        taken = gpu_step.take(make())
    except ConfigError:
        return ""  # which other tests look at
    except Exception as error:
        if "FIDGPT_TRACE" in os.environ:
            traceback.print_exc()
        return f"{type(error).__name__}: {error}".splitlines()[0][:300]
    return "" if sum(taken.waits.values()) == waits else f"waits {dict(taken.waits)}"


def main(tier: str) -> None:
    """Run all cases, or some of them."""
    problems = {name: problem(make, waits) for name, make, waits in cases(is_long=tier == "long")}
    wrong = {name: text for name, text in problems.items() if text}
    launches = gpu_step.take(small("debug")).launches.total()
    print(json.dumps({"cases": len(problems), "wrong": wrong, "launches": launches}))


if __name__ == "__main__":
    main(*sys.argv[2:])
