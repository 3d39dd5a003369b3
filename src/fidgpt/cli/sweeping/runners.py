"""What `--runner=NAME(args)` names: this machine, or the engine of a cluster."""

import importlib

from fidgpt.cli.catalogue.calls import call_with
from fidgpt.graph import ConfigError, suggest
from fidgpt.graph.errors import at
from fidgpt.graph.typed.calls import parse_call
from fidgpt.sweep import Runner

_CLASSES = {
    "local": "fidgpt.sweep.runners.local:LocalRunner",
    "ray": "fidgpt.sweep.runners.ray_cluster:RayRunner",
    "slurm": "fidgpt.sweep.runners.slurm:SlurmRunner",
}
_FLAGS = ("jobs", "retries")


def read_runner(text: str, *, jobs: int, retries: int) -> Runner:
    """The runner that a text names, with the arguments that it gives.

    Args:
      text: such as `ray(address=auto,gpus=1)`.
      jobs: points that are trained side by side.
      retries: how often a point that failed is tried again.

    Raises:
      ConfigError: there is no such runner, or it does not take these arguments.
    """
    with at(f"--runner={text:.80}"):
        call = parse_call(text)
        if call.name not in _CLASSES:
            raise ConfigError(f"there is no runner {call.name!r}. {suggest(call.name, _CLASSES)}")
        for name in _FLAGS:
            if name in call.named:
                raise ConfigError(f"{name} is a flag of its own: --{name}={call.named[name]}.")
        module, _, made = _CLASSES[call.name].partition(":")
        call.named.update(jobs=str(jobs), retries=str(retries))
        return call_with(getattr(importlib.import_module(module), made), call)
