"""The sections `optimizer:` and `trainer:` of a Levanter file as directives."""

from typing import Any

from fidgpt.interop.levanter.running import map_mesh, map_precision, map_profiler, map_trackers
from fidgpt.interop.levanter.schedule import map_schedule
from fidgpt.interop.levanter.section import Section
from fidgpt.interop.levanter.steps import map_average, map_checkpoints, map_skipped_steps

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
