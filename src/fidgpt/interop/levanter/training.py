"""Training settings of a Levanter file."""

from typing import Any

from fidgpt.interop.levanter.section import (
    Section,
    map_average,
    map_checkpoints,
    map_skipped_steps,
    shown,
)

# The fiddler for each word of `lr_schedule`, and the entries of its own that it may have.
_FIDDLERS: dict[str, tuple[str, dict[str, Any]]] = {
    "constant": ("use_constant", {}),
    "cosine": ("use_cosine", {"exponent": 1.0}),
    "linear": ("use_linear", {}),
    "inv": ("use_inverse", {}),
    "inv_sqrt": ("use_inverse_sqrt", {}),
}
_TIMESCALE = 10_000
_CYCLES = ("cycles", "cycle_length", "haps")
_PLAIN = ("constant", "cosine", "linear")


def map_schedule(section: Section, num_steps: int) -> None:
    """Adds to the plan what is said; one cycle of a usual shape as the schedule of that name."""
    warmup = _length(section, "warmup", section.take("warmup", 0.01, float))
    decay = section.take("decay", None, float)
    decay = None if decay is None else _length(section, "decay", decay)
    rewarmup = _length(section, "rewarmup", section.take("rewarmup", 0.0, float))
    floor = section.take("min_lr_ratio", 0.1, float)
    kind, arguments = _kind(section)
    cycles = _cycles(section)
    is_full = decay is None or _steps(warmup, num_steps) + _steps(decay, num_steps) == num_steps
    if cycles or kind not in _PLAIN or (kind == "cosine" and not is_full):
        _map_phases(section, kind, arguments | {"min_lr_ratio": floor}, decay)
        section.plan.changes.append(f"fiddler:set_warmup({warmup})")
        if cycles:
            cycles["rewarmup"] = rewarmup
            section.plan.changes.append(f"fiddler:use_cycles({_told(cycles)})")
        return
    _map_plain(section, kind, _steps(warmup, num_steps), decay, floor, num_steps)


def _map_phases(
    section: Section, kind: str, arguments: dict[str, Any], decay: int | float | None
) -> None:
    name = _FIDDLERS[kind][0]
    told = "" if kind == "constant" else f"({_told(arguments)})"
    section.plan.changes.append(f"fiddler:{name}{told}")
    if decay is not None:
        section.plan.wanted.append(("schedule.decay", decay))


def _map_plain(
    section: Section,
    kind: str,
    warmup_steps: int,
    decay: int | float | None,
    floor: float,
    num_steps: int,
) -> None:
    plan = section.plan
    plan.wanted.append(("schedule.warmup_steps", warmup_steps))
    if kind == "constant":
        plan.changes.append("use:schedule=optim.Constant")
        return
    plan.wanted.append(("schedule.min_ratio", floor))
    if kind == "linear":
        steps = num_steps - warmup_steps if decay is None else _steps(decay, num_steps)
        plan.changes.append(f"use:schedule=WarmupStableDecay(decay_steps={steps})")


def _kind(section: Section) -> tuple[str, dict[str, Any]]:
    """The word for the shape of the decay, and what its fiddler is told of it."""
    arguments: dict[str, Any] = {}
    if section.takes("lr_schedule", dict):
        inner = section.section("lr_schedule")
        kind = inner.take("type", "cosine", str)
        if kind == "inv_sqrt":
            arguments["timescale"] = int(inner.take("timescale", float(_TIMESCALE), float))
        inner.neutral(_FIDDLERS[kind][1] if kind in _FIDDLERS else {})
        inner.close()
    else:
        kind = section.take("lr_schedule", "cosine", str)
    if kind not in _FIDDLERS:
        section.unmap("lr_schedule", kind, "a cosine stays")
        return "cosine", {}
    return kind, {"timescale": _TIMESCALE} | arguments if kind == "inv_sqrt" else {}


def _cycles(section: Section) -> dict[str, Any]:
    """How the run is cut into cycles, in the words of `use_cycles`; nothing where it is not."""
    said = [key for key in _CYCLES if section.left.get(key) is not None]
    if len(said) > 1:
        section.plan.mistakes.append(
            f"{section.path}: {' and '.join(said)} say the same thing: leave one of them."
        )
    found: dict[str, Any] = {}
    for key in said:
        value: Any = section.left.pop(key)
        name = "cycles" if key == "haps" else key
        if key == "cycle_length" and type(value) in (int, float):
            found[name] = _length(section, key, float(value))
        elif _is_steps(value) or (key == "cycles" and type(value) is int):
            found[name] = value
        else:
            section.plan.mistakes.append(
                f"{section.path}.{key} is {shown(value)}, and a number or a list of steps is asked."
            )
    return found


def _is_steps(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(one) is int for one in value)


def _length(section: Section, key: str, value: float) -> int | float:
    """A share, up to 1, or a number of steps; Levanter tells them apart by their size alone."""
    if value < 0 or (value > 1 and not value.is_integer()):
        section.plan.mistakes.append(
            f"{section.path}.{key} is {value}, and a share from 0 to 1 or a whole number of steps "
            "is asked."
        )
        return 0.0
    return value if value <= 1 else int(value)


def _steps(length: int | float, num_steps: int) -> int:
    return length if isinstance(length, int) else int(length * num_steps)


def _told(arguments: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in arguments.items())


_FLOAT32 = ("f32", "float32", "full")
_BFLOAT16 = ("bf16", "bfloat16")
_FLOAT16 = ("f16", "float16", "half")
_ALONE = "weights are float32, and computed with as the machine can"
_MESH = ("model_axis_size", "replica_ici_axis_size", "replica_dcn_axis_size")
_USUAL: dict[str, Any] = {
    "name": None,
    "id": None,
    "group": None,
    "resume": "allow",
    "save_code": True,
    "save_xla_dumps": False,
}


def map_precision(section: Section) -> None:
    """Adds to the plan what `mp:` says: a policy of jmp, such as `p=f32,c=bfloat16`."""
    text = section.take("mp", "f32", str)
    said = _policy(text)
    if said is None:
        section.unmap("mp", text, _ALONE)
        return
    changes = section.plan.changes
    if said["params"] not in _FLOAT32:
        section.unmap("mp", text, _ALONE)
    elif said["compute"] in _FLOAT32:
        changes.append("use:precision=Float32")
    elif said["compute"] in _BFLOAT16:
        changes.append("use:precision=BFloat16")
    elif said["compute"] in _FLOAT16:
        changes.append("fiddler:use_float16")
    else:
        section.unmap("mp", text, _ALONE)
    if said["params"] in _FLOAT32 and said.get("output", said["compute"]) != said["compute"]:
        section.unmap("mp", text, "logits are in the format of the computation")


def _policy(text: str) -> dict[str, str] | None:
    """The formats of parameters, computation and output; None where it is no policy."""
    names = {"p": "params", "c": "compute", "o": "output"}
    parts = [part.partition("=") for part in text.replace(" ", "").lower().split(",")]
    if len(parts) == 1 and not parts[0][1]:
        return dict.fromkeys(names.values(), parts[0][0])
    said = {names.get(name, name): value for name, _, value in parts}
    if not said.keys() <= {*names.values()} or "params" not in said:
        return None
    return {"compute": said["params"]} | said


def map_mesh(section: Section) -> None:
    """Adds to the plan how the model lies on devices; names of axes alone change nothing."""
    section.left.pop("batch_axis", None)
    section.neutral(
        dict.fromkeys(_MESH, 1) | {"axis_resources": {}, "parameter_axis_resources": {}}
    )
    if "model_axis_size" not in section.left:
        section.left.pop("tensor_parallel_axes", None)  # there is no device to deal them to
    if section.left.pop("fsdp_axis", None) is not None:
        section.plan.changes.append("fiddler:use_fsdp")


def map_profiler(section: Section) -> None:
    """Adds to the plan which steps are profiled, where any are."""
    begin = section.take("profiler_start_step", 5, int)
    num_steps = section.take("profiler_num_steps", 100, int)
    section.neutral({"profiler_perfetto_link": False})
    if section.take("profiler", False, bool):
        arguments = f"begin={begin}, num_steps={num_steps}"
        section.plan.changes.append(f"fiddler:use_profiler({arguments})")


def map_trackers(section: Section) -> None:
    """Adds to the plan who hears of the run; `wandb:` is an older word for a tracker of that."""
    said = section.left.pop("tracker", None)
    trackers = said if isinstance(said, list) else [said]
    for i, tracker in enumerate(trackers):
        place = f"tracker[{i}]" if isinstance(said, list) else "tracker"
        _map_tracker(section.inside(place, tracker))
    _map_tracker(section.section("wandb"))


def _map_tracker(tracker: Section) -> None:
    if not tracker.left:
        return
    kind, changes = tracker.take("type", "wandb", str), tracker.plan.changes
    if tracker.left.get("mode") == "disabled":
        return
    if kind == "wandb":
        arguments = _arguments(tracker, {"project": "project", "entity": "entity", "mode": "mode"})
        changes.append(f"fiddler:use_wandb{arguments}")
        tracker.neutral(_USUAL)
    elif kind == "trackio":
        arguments = _arguments(tracker, {"project": "project", "space_id": "space"})
        changes.append(f"fiddler:use_trackio{arguments}")
    elif kind == "tensorboard":
        changes.append("fiddler:use_tensorboard")
    elif kind not in ("noop", "json_logger"):
        tracker.unmap("type", kind, "fidgpt has no such tracker")
    tracker.close()


def _arguments(tracker: Section, names: dict[str, str]) -> str:
    """What a tracker is told, by our names, as a directive writes it."""
    said: dict[str, Any] = {ours: tracker.take(theirs, None, str) for theirs, ours in names.items()}
    told = [f"{name}={value!r}" for name, value in said.items() if value is not None]
    return f"({', '.join(told)})" if told else ""


_OPTIMIZER_OFF: dict[str, Any] = {
    "cooldown": None,
    "cycle_length": None,
    "cycles": None,
    "haps": None,
    "weight_decay_modules": None,
    "nesterov": False,
    "update_rms_clipping": None,
    "clip_update_norm": None,
    "adamc_weight_decay": False,
}
_TRAINER_OFF: dict[str, Any] = {
    "quantization": None,
    "crash_on_nan": True,
    "crash_on_inf": True,
    "per_device_parallelism": -1,
    "per_device_eval_parallelism": -1,
    "allow_nondivisible_batch_size": False,
    "load_checkpoint": None,
    "load_checkpoint_path": None,
    "initialize_from": None,
    "allow_partial_checkpoint": False,
    "shutdown_at_exit": False,
    "id": None,
}


def map_trainer(section: Section) -> int:
    """Adds to the plan what `trainer:` says; returns the steps of the run."""
    plan = section.plan
    num_steps = section.take("num_train_steps", 400_000, int)
    plan.wanted.append(("num_steps", num_steps))
    if section.takes("train_batch_size", list, dict):
        section.unmap("train_batch_size", section.left.pop("train_batch_size"), "one size for all")
    elif section.left.get("train_batch_size") == -1:
        section.unmap("train_batch_size", section.left.pop("train_batch_size"), "devices decide")
    else:
        plan.wanted.append(("batch_size", section.take("train_batch_size", 512, int)))
    plan.wanted.append(("seed", section.take("seed", 0, int)))
    section.neutral(_TRAINER_OFF)
    if "per_device_parallelism" in section.left:
        plan.wanted.append(("micro_batch_size", section.take("per_device_parallelism", -1, int)))
    plan.wanted.append(("evaluators.validation.every", section.take("steps_per_eval", 1000, int)))
    batches = section.take("max_eval_batches", None, int)
    plan.wanted.append(("evaluators.validation.data.num_batches", batches))
    map_precision(section)
    map_mesh(section)
    map_profiler(section)
    map_trackers(section)
    map_checkpoints(section.section("checkpointer"), num_steps)
    map_average(section.section("model_averaging"))
    section.close()
    return num_steps


def map_optimizer(section: Section, num_steps: int) -> None:
    """Adds to the plan what `optimizer:` says of AdamW, Muon or Lion, and of the learning rate.

    Of any other optimizer AdamW takes the learning rate and the decay alone.
    """
    plan = section.plan
    kind = section.take("type", "adam", str)
    rate = section.take("learning_rate", 6e-4, float)
    if kind == "muon":
        rate = _map_muon(section, rate)
    elif kind == "lion":
        plan.changes.append("fiddler:use_lion")
        section.left.pop("epsilon", None)  # of which Lion has no use
    elif kind != "adam":
        section.unmap("type", kind, "AdamW stays")
    decay = section.take("weight_decay", 0.0 if kind == "muon" else 0.1, float)
    plan.wanted += [
        ("optimizer.lr", rate),
        ("optimizer.weight_decay", decay),
        ("max_grad_norm", _max_grad_norm(section)),
    ]
    if kind in ("adam", "muon", "lion"):
        betas = section.take("beta1", 0.9, float), section.take("beta2", 0.95, float)
        plan.wanted.append(("optimizer.betas", betas))
    if kind in ("adam", "muon"):
        plan.wanted.append(("optimizer.eps", section.take("epsilon", 1e-8, float)))
    map_schedule(section, num_steps)
    map_skipped_steps(section)
    mask = section.left.pop("default_weight_decay_mask", None)
    section.unmap("default_weight_decay_mask", mask, "every matrix decays, the embedding too")
    section.neutral(_OPTIMIZER_OFF)
    section.close()


def _map_muon(section: Section, rate: float) -> float:
    """Muon for the matrices at `rate`; returns that of AdamW for all the rest."""
    others = section.take("adam_lr", 6e-4, float)
    is_rescaled = section.take("use_kimi_scaling", False, bool)
    scale = rate / others if others else 1.0
    section.plan.changes.append(f"fiddler:use_muon(matrix_scale={scale!r})")
    section.plan.wanted += [
        ("optimizer.momentum", section.take("momentum", 0.95, float)),
        ("optimizer.nesterov", section.take("nesterov", True, bool)),
        ("optimizer.ns_steps", section.take("backend_steps", 5, int)),
        ("optimizer.adjust_lr_fn", "match_rms_adamw" if is_rescaled else "original"),
    ]
    return others


def _max_grad_norm(section: Section) -> float | None:
    """Here null turns clipping off, as 0 does; elsewhere null leaves the default."""
    if "max_grad_norm" in section.left and section.left["max_grad_norm"] is None:
        del section.left["max_grad_norm"]
        return None
    return section.take("max_grad_norm", 1.0, float) or None
