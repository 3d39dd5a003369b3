"""Train variants of a config: `fidgpt sweep base optimizer.lr=1e-3,3e-3`, or `python sweep.py`.

It takes the words of `fidgpt train`; one with several values is an axis, and axes multiply.
`--print` shows the points, each of which is trained once.
"""

import importlib
import os
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from absl import flags

from fidgpt.cli import app
from fidgpt.cli.flags import FLAGS, answered
from fidgpt.errors import ConfigError, at, suggest

if TYPE_CHECKING:
    from rich.console import Console

    from fidgpt.sweep import Runner

AXES = ("sweep", "zip", "repeat", "ablate")
_RUNNERS = {
    "local": "fidgpt.sweep.runners.jobs:LocalRunner",
    "ray": "fidgpt.sweep.runners.ray_cluster:RayRunner",
    "slurm": "fidgpt.sweep.runners.slurm:SlurmRunner",
}
_HELP = {
    "sweep": "An axis: a directive with several values, such as tag:LearningRate=1e-3,3e-3, "
    "set:seq_len=range(64,256,64), tag:LearningRate=log(1e-4,1e-2,9), lin(0,0.2,3) or "
    "fiddler:use_rope,use_alibi. Axes multiply; their order among the directives counts.",
    "zip": "Axes of equal length that vary together: "
    "'set:seq_len=64,128;tag:LearningRate=3e-3,1e-3'.",
    "repeat": "Repeat with other seeds: seed:3 is the seed of the config and the next two.",
    "ablate": "All of these directives, and all but each one in turn: fiddler:use_gqa,use_moe; "
    "separate several kinds by ;. A run with none of them is not a point.",
    "space": "What --search samples: 'tag:LearningRate=log(1e-5,1e-1)', 'set:dropout=lin(0,0.2)', "
    "'set:seq_len=range(64,513,64)', or one of several values: fiddler:use_rope,use_alibi.",
}
_NEEDED_BY = {("search",): ("search_seed", "stop", "space"), ("bisect",): ("threshold", "steps")}
_EXCLUDED_BY = {"search": AXES, "bisect": ("config", "search", *AXES)}


class _InPlace(flags.MultiFlag):
    """A repeatable flag; each value has the number of directives and axes before it."""

    def __init__(self, name: str) -> None:
        parser, serializer = flags.ArgumentParser(), flags.ArgumentSerializer()
        super().__init__(parser, serializer, name, [], _HELP[name])

    def _parse(self, arguments: Any) -> list[Any]:
        axes = sum(FLAGS[name].present for name in _HELP if name in FLAGS)
        return [(FLAGS["config"].present, axes, argument) for argument in super()._parse(arguments)]


for _name in _HELP:
    flags.DEFINE_flag(_InPlace(_name))
flags.DEFINE_string(
    "search",
    None,
    "Choose points by earlier results: a sampler and a count, as tpe:50, random:50, cmaes:50; or "
    "grid for all values of the spaces. The same command resumes; a higher count adds points.",
)
flags.DEFINE_integer("search_seed", 0, "Seed of the sampler of --search.", lower_bound=0)
flags.DEFINE_multi_string(
    "stop",
    [],
    "End unpromising points of --search early: asha or median.",
    allow_override=True,  # the completion of all commands also loads the flag of fidgpt.cli.sample
)
flags.DEFINE_string(
    "bisect", None, "GOOD:BAD, two run directories: find the difference that made it bad."
)
flags.DEFINE_float("threshold", None, "From where --bisect calls a run bad; defaults to half-way.")
flags.DEFINE_integer("steps", None, "Number of steps --bisect trains each run for.", lower_bound=1)
flags.DEFINE_string(
    "objective",
    None,
    "Metric to compare points by, such as validation/loss, which --search minimizes; maximized "
    "if it begins with max:, as in max:tasks/arc_easy/acc.",
)
flags.DEFINE_string(
    "runner",
    "local",
    "What runs the points: local, ray(address=auto,gpus=1) or slurm(partition=gpu,timeout_min=60).",
)
flags.DEFINE_integer("jobs", 1, "Number of points to train in parallel.", lower_bound=1)
flags.DEFINE_integer(
    "retries", 0, "How often to retry a failed point from its newest checkpoint.", lower_bound=0
)


flags.DEFINE_bool(
    "scaling", False, "Fit loss to size and tokens of the points, and draw it: a scaling law."
)
flags.DEFINE_string(
    "budget",
    None,
    "Operations (1e20), hours on --hardware (500h) or money at --price ($2000): with --scaling, "
    "what to train for it; else what the points may take together.",
)
flags.DEFINE_bool("drop", False, "Drop the points beyond --budget in place of refusing them.")


def run() -> None:
    """Entry point of the command."""
    app.run(main, takes_directives=True)


def main(arguments: list[str]) -> int | None:
    """Train every point that is not done yet; return 1 if one of them failed.

    Raises:
      ConfigError: a flag, an axis or the directory is wrong.
      OSError: a file of the sweep cannot be read or written.
    """
    if answered(arguments):
        return None
    from fidgpt.sweep.results import console_of_log  # late: --help and --list load no torch

    console = console_of_log()
    _check_flags()
    if FLAGS.bisect is not None:
        return _bisect(console)
    return _sweep(console) if FLAGS.search is None else _search(console)


def _check_flags() -> None:
    if FLAGS.run_dir is not None and (Path(FLAGS.run_dir) / "config.json").exists():
        raise ConfigError(
            f"--run_dir={FLAGS.run_dir} holds a run: name a directory of the sweep's own."
        )
    if FLAGS.print not in (None, "text"):
        raise ConfigError(
            f"--print={FLAGS.print} shows one config: --print shows the points of a sweep, and "
            "train.py --print with the directives of one of them its config."
        )
    app.refuse_unused(_NEEDED_BY)
    for mode, others in _EXCLUDED_BY.items():
        if FLAGS[mode].value is None:
            continue
        for name in others:
            if FLAGS[name].present:
                raise ConfigError(f"--{name} has no effect with --{mode}: remove one of them.")
        if not FLAGS.objective:
            raise ConfigError(f"--{mode} needs a metric to compare: --objective=validation/loss")


def _settings() -> dict[str, Any]:
    """Return the arguments that sweeps, searches and bisections share."""
    allowed = tuple(FLAGS.allow)
    return {"directory": FLAGS.run_dir, "objective": FLAGS.objective, "allowed": allowed}


def _items(makers: Mapping[Any, Callable[[str], Any]]) -> list[Any]:
    """Return the directives, with what flags make in their places among them.

    Raises:
      ConfigError: one of those is wrong.
    """
    items, done = [], 0
    given = sorted((text, flag) for flag in makers for text in FLAGS[flag].value or [])
    for (place, _, text), flag in given:
        items += [*FLAGS.config[done:place], makers[flag](text)]
        done = place
    return [*items, *FLAGS.config[done:]]


def _runner() -> "Runner":
    """Return the runner that --runner names.

    Raises:
      ConfigError: there is no such runner, or it does not take these arguments.
    """
    from fidgpt.compose.catalogue import call_with
    from fidgpt.graph.expressions import parse_call

    with at(f"--runner={FLAGS.runner:.80}"):
        call = parse_call(FLAGS.runner)
        if call.name not in _RUNNERS:
            raise ConfigError(f"there is no runner {call.name!r}. {suggest(call.name, _RUNNERS)}")
        module, _, runner = _RUNNERS[call.name].partition(":")
        for name in ("jobs", "retries"):
            call.named.setdefault(name, str(FLAGS[name].value))
        return call_with(getattr(importlib.import_module(module), runner), call)


def _print(console: "Console", shown: Any, *, soft_wrap: bool = False) -> None:
    """Print directives and results as they are: they hold no secrets, only words like a secret."""
    with console.capture() as captured:
        console.print(shown, soft_wrap=soft_wrap)
    app.print_graph(captured.get())


def _show(console: "Console", results: Any, directory: Path) -> None:
    _print(console, results)
    command = f"python -m fidgpt.sweep report {shlex.quote(str(directory))}"
    console.print(f"More of it: {command}", soft_wrap=True)


def _stopped(console: "Console", directory: Path) -> int:
    console.print(f"Stopped; the same command resumes it in {directory}", soft_wrap=True)
    return app.INTERRUPTED


def _sweep(console: "Console") -> int | None:
    from fidgpt.sweep import Sweep
    from fidgpt.sweep.axes import MAKERS, Axis
    from fidgpt.sweep.objective import refuse_unreported

    if FLAGS.hardware:
        os.environ["FIDGPT_MACHINE"] = FLAGS.hardware.lower()
    sweep = Sweep(*_items(MAKERS), **_settings(), price=FLAGS.price)
    if not any(isinstance(item, Axis) for item in sweep.items):
        raise ConfigError("name an axis: --sweep=tag:LearningRate=1e-3,3e-3")
    runner = _runner()
    from fidgpt.cli import scaling  # late: --help loads no torch

    if FLAGS.budget and not FLAGS.scaling:
        most, is_time = scaling.budget()
        for point in sweep.within(most, is_time=is_time, drops=FLAGS.drop):
            console.print(f"dropped, beyond the budget: {point.name}", soft_wrap=True)
    if FLAGS.print:
        _print(console, sweep)
        return None
    if FLAGS.scaling:
        scaling.refuse_before(sweep)
    results = sweep.run(runner=runner, console=console)
    _show(console, results, sweep.directory)
    if FLAGS.scaling:
        scaling.show(console, sweep, results)
    finished = [row["metrics"] for row in results if row["status"] == "finished"]
    if sweep.objective is not None and finished:
        refuse_unreported(sweep.objective, dict.fromkeys(key for row in finished for key in row))
    statuses = {row["status"] for row in results}
    if statuses & {"waiting", "stopped"}:
        return _stopped(console, sweep.directory)
    # A point that is still running is run by another process, which retried one that failed here.
    return 1 if statuses & {"failed", "diverged", "running"} else 0


def _search(console: "Console") -> int | None:
    from fidgpt.data.errors import import_extra

    import_extra("optuna", extra="search", purpose="--search")
    from fidgpt.sweep.search import Search, space

    stop = FLAGS.stop[-1] if FLAGS.stop else None
    settings = {"seed": FLAGS.search_seed, **_settings()}
    search = Search(*_items({"space": space}), sampler=FLAGS.search, stop=stop, **settings)
    runner = _runner()
    if FLAGS.print:
        _print(console, search)
        return None
    outcome = search.run(jobs=FLAGS.jobs, runner=runner, console=console)
    _show(console, outcome, search.directory)
    if not outcome.is_whole:
        return _stopped(console, search.directory)
    return int(any(row["status"] == "failed" for row in outcome.results))


def _bisect(console: "Console") -> int | None:
    from fidgpt.sweep.bisection import Bisection, Stopped

    good, _, bad = FLAGS.bisect.rpartition(":")
    if not (good and bad):
        raise ConfigError("--bisect needs two run directories: --bisect=runs/good:runs/bad")
    bisection = Bisection(good, bad, threshold=FLAGS.threshold, steps=FLAGS.steps, **_settings())
    if FLAGS.print:
        _print(console, bisection)
        return None
    try:
        findings = bisection.run(_runner(), jobs=FLAGS.jobs, console=console)
    except Stopped:
        return _stopped(console, bisection.directory)
    _print(console, findings, soft_wrap=True)
    return None


if __name__ == "__main__":
    run()
