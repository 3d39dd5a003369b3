"""The sections `optimizer:` and `trainer:` of a Levanter file as directives."""

from typing import Any

from fidgpt.interop.levanter_section import Section, shown

_SCHEDULE_OFF: dict[str, Any] = {
    "rewarmup": 0.0,
    "cooldown": None,
    "cycle_length": None,
    "cycles": None,
    "haps": None,
    "weight_decay_modules": None,
    "nesterov": False,
    "update_rms_clipping": None,
    "clip_update_norm": None,
    "skip_bad_steps": False,
    "adamc_weight_decay": False,
}
_TRAINER_OFF: dict[str, Any] = {
    "quantization": None,
    "model_averaging": None,
    "profiler": False,
    "per_device_parallelism": -1,
    "allow_nondivisible_batch_size": False,
    "model_axis_size": 1,
    "replica_ici_axis_size": 1,
    "replica_dcn_axis_size": 1,
    "tensor_parallel_axes": None,
    "axis_resources": {},
    "parameter_axis_resources": {},
    "load_checkpoint": None,
    "load_checkpoint_path": None,
    "initialize_from": None,
    "allow_partial_checkpoint": False,
    "shutdown_at_exit": False,
    "wandb": None,
    "id": None,
}
_FLOAT32 = ("f32", "float32", "full")
_BFLOAT16 = ("bf16", "bfloat16")


def map_trainer(section: Section) -> int:
    """Adds to the plan what `trainer:` says; returns the steps of the run."""
    plan = section.plan
    num_steps = section.take("num_train_steps", 400_000, int)
    plan.wanted.append(("num_steps", num_steps))
    if section.takes("train_batch_size", list, dict):
        section.unmap("train_batch_size", section.left.pop("train_batch_size"), "one size for all")
    else:
        plan.wanted.append(("batch_size", section.take("train_batch_size", 512, int)))
    plan.wanted.append(("seed", section.take("seed", 0, int)))
    section.neutral(_TRAINER_OFF)
    if "per_device_parallelism" in section.left:
        plan.wanted.append(("micro_batch_size", section.take("per_device_parallelism", -1, int)))
    plan.wanted.append(("evaluators.validation.every", section.take("steps_per_eval", 1000, int)))
    batches = section.take("max_eval_batches", None, int)
    plan.wanted.append(("evaluators.validation.data.num_batches", batches))
    _map_precision(section)
    _map_checkpoints(section.section("checkpointer"), num_steps)
    section.close()
    return num_steps


def map_optimizer(section: Section, num_steps: int) -> None:
    """Adds to the plan what `optimizer:` says of AdamW and of the learning rate."""
    plan = section.plan
    kind = section.take("type", "adam", str)
    if kind != "adam":
        section.unmap("type", kind, "AdamW stays")
    betas = section.take("beta1", 0.9, float), section.take("beta2", 0.95, float)
    plan.wanted += [
        ("optimizer.lr", section.take("learning_rate", 6e-4, float)),
        ("optimizer.weight_decay", section.take("weight_decay", 0.1, float)),
        ("optimizer.betas", betas),
        ("optimizer.eps", section.take("epsilon", 1e-8, float)),
        ("max_grad_norm", _max_grad_norm(section)),
    ]
    _map_schedule(section, num_steps)
    mask = section.left.pop("default_weight_decay_mask", None)
    section.unmap("default_weight_decay_mask", mask, "every matrix decays, the embedding too")
    section.neutral(_SCHEDULE_OFF)
    section.close()


def _max_grad_norm(section: Section) -> float | None:
    """Here null turns clipping off; elsewhere it leaves the default."""
    if "max_grad_norm" in section.left and section.left["max_grad_norm"] is None:
        del section.left["max_grad_norm"]
        return None
    return section.take("max_grad_norm", 1.0, float)


def _map_schedule(section: Section, num_steps: int) -> None:
    plan = section.plan
    warmup = section.take("warmup", 0.01, float)
    warmup_steps = _steps(section, "warmup", warmup, num_steps)
    decay = section.take("decay", None, float)
    falls = num_steps - warmup_steps
    decay_steps = falls if decay is None else _steps(section, "decay", decay, num_steps)
    min_ratio = section.take("min_lr_ratio", 0.1, float)
    kind = _schedule_kind(section)
    plan.wanted.append(("schedule.warmup_steps", warmup_steps))
    if kind == "constant":
        plan.changes.append("use:schedule=optim.Constant")
        return
    plan.wanted.append(("schedule.min_ratio", min_ratio))
    if kind == "linear":
        plan.changes.append(f"use:schedule=WarmupStableDecay(decay_steps={decay_steps})")
        return
    if kind != "cosine":
        section.unmap("lr_schedule", kind, "a cosine stays")
    if decay_steps != falls:
        section.unmap("decay", decay, "the fall begins after the warm-up")


def _schedule_kind(section: Section) -> str:
    if not section.takes("lr_schedule", dict):
        return section.take("lr_schedule", "cosine", str)
    schedule = section.section("lr_schedule")
    kind = schedule.take("type", "cosine", str)
    schedule.neutral({"exponent": 1.0} if kind == "cosine" else {})
    schedule.close()
    return kind


def _steps(section: Section, key: str, value: float, num_steps: int) -> int:
    """A share of the run, up to 1, or a number of steps, in steps."""
    if value < 0 or (value > 1 and not value.is_integer()):
        section.plan.mistakes.append(
            f"{section.path}.{key} is {value}, and a share from 0 to 1 or a whole number of steps "
            "is asked."
        )
        return 0
    return int(value * num_steps) if value <= 1 else int(value)


def _map_precision(section: Section) -> None:
    text = section.take("mp", "f32", str)
    parts = (part.partition("=") for part in text.replace(" ", "").split(","))
    said = {name: value for name, _, value in parts}
    if len(said) == 1 and "" in said.values():
        said = {"params": next(iter(said))}
    params = said.get("params", said.get("p", ""))
    compute = said.get("compute", said.get("c", params))
    if params in _FLOAT32 and compute in _FLOAT32:
        section.plan.changes.append("use:precision=Float32")
    elif params in _FLOAT32 and compute in _BFLOAT16:
        section.plan.changes.append("use:precision=BFloat16")
    else:
        section.unmap("mp", text, "weights are float32, and computed with as the machine can")


def _map_checkpoints(section: Section, num_steps: int) -> None:
    """Levanter keeps every checkpoint that `keep` names, and writes passing ones by the clock."""
    keep = section.left.pop("keep", [{"every": 10_000}])
    match keep:
        case [{"every": int(every), **rest}] if every > 0 and not any(rest.values()):
            kept = max(1, -(-num_steps // every))
            section.plan.wanted += [("checkpoints.every", every), ("checkpoints.keep_last", kept)]
        case _:
            section.unmap("keep", shown(keep), "checkpoints come every so many steps, all alike")
    section.close()
