"""What a Levanter file says of how a run is computed and who hears of it, as directives."""

from typing import Any

from fidgpt.interop.levanter.section import Section

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
