"""The command `sweep.py`: many configs as one set, each point trained once."""

import importlib.util
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from fidgpt.cli import app, asked
from fidgpt.cli.flags import FLAGS, refuse_arguments

if TYPE_CHECKING:
    from rich.console import Console

    from fidgpt.sweep import Axis, Sweep
    from fidgpt.sweep.search import Space

_AXES = ("sweep", "zip", "repeat", "ablate")
_PLACED = (*_AXES, "space")


class _Placed(NamedTuple):
    """What a flag said, and how many directives and axes were said before it."""

    place: tuple[int, int]
    text: str


class _InPlace(flags.MultiFlag):
    """A flag that may be repeated, whose place among the directives counts."""

    def __init__(self, name: str, help_text: str) -> None:
        super().__init__(flags.ArgumentParser(), flags.ArgumentSerializer(), name, [], help_text)

    def _parse(self, arguments: Any) -> list[Any]:
        axes = sum(FLAGS[name].present for name in _PLACED if name in FLAGS)
        place = (FLAGS["config"].present, axes)
        return [_Placed(place, one) for one in super()._parse(arguments)]


flags.DEFINE_flag(
    _InPlace(
        "sweep",
        "An axis: a directive with several values, such as tag:LearningRate=1e-3,3e-3, "
        "set:seq_len=range(64,256,64), tag:LearningRate=log(1e-4,1e-2,9), lin(0,0.2,3) or "
        "fiddler:use_rope,use_alibi. Axes multiply; each has its place among the directives.",
    )
)
flags.DEFINE_flag(
    _InPlace(
        "zip",
        "Axes of one length that go in pairs: 'set:seq_len=64,128;tag:LearningRate=3e-3,1e-3'.",
    )
)
flags.DEFINE_flag(
    _InPlace("repeat", "The same with other seeds: seed:3 is that of the config and the next two.")
)
flags.DEFINE_flag(
    _InPlace(
        "ablate",
        "All of some directives, and all but one of them, for each: fiddler:use_gqa,use_moe; of "
        "several kinds with a ; between them. A run with none of them is no point of it.",
    )
)
flags.DEFINE_flag(
    _InPlace(
        "space",
        "What --search chooses: 'tag:LearningRate=log(1e-5,1e-1)', 'set:dropout=lin(0,0.2)', "
        "'set:seq_len=range(64,513,64)', or one of several values: fiddler:use_rope,use_alibi.",
    )
)
flags.DEFINE_string(
    "search",
    None,
    "Choose points by what came of those before, and how many: tpe:50, random:50, cmaes:50, or "
    "grid for all of the spaces' values. The same command goes on; with more points, it adds.",
)
flags.DEFINE_integer("search_seed", 0, "Seed of the sampler of --search.", lower_bound=0)
flags.DEFINE_multi_string(
    "stop",
    [],
    "End points of --search that are not worth going on with: asha or median.",
    allow_override=True,  # the completion of all commands knows that of fidgpt.sample, too
)
flags.DEFINE_string(
    "bisect", None, "GOOD:BAD, two run directories: find the difference that made it bad."
)
flags.DEFINE_float("threshold", None, "From where on --bisect calls a value bad; half-way.")
flags.DEFINE_integer("steps", None, "How long --bisect trains each run.", lower_bound=1)
flags.DEFINE_string(
    "objective", None, "What --search makes small and --bisect compares: validation/loss."
)
flags.DEFINE_integer("jobs", 1, "Points that are trained side by side.", lower_bound=1)
flags.DEFINE_integer(
    "retries",
    0,
    "How often a point that failed is tried again, on from where it was.",
    lower_bound=0,
)


def run() -> None:
    """Entry point of the command."""
    app.run(main)


def main(arguments: list[str]) -> int | None:
    """Trains every point that is not done yet; returns 1 when one of them failed."""
    refuse_arguments(arguments)
    if asked.answered():
        return None
    from rich.console import Console  # late: --help and --list load no torch

    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000  # nothing is there to be filled, and a row stays in one line
    if FLAGS.bisect is not None:
        return _bisect(console)
    if FLAGS.search is not None:
        return _search(console)
    _refuse("search", "search_seed", "stop", "objective", "space", "threshold", "steps")
    return _run(console)


def _run(console: "Console") -> int | None:
    sweep = _sweep()
    if FLAGS.print:
        console.print(sweep)
        return None
    results = sweep.run(jobs=FLAGS.jobs, retries=FLAGS.retries, console=console)
    console.print(results)
    statuses = {row["status"] for row in results}
    if statuses & {"waiting", "running", "stopped"}:
        return _stopped(console, sweep.directory)
    return 1 if statuses & {"failed", "diverged"} else 0


def _search(console: "Console") -> int | None:
    from fidgpt.graph import ConfigError

    _refuse("bisect", *_AXES, "threshold", "steps")
    if importlib.util.find_spec("optuna") is None:
        raise ConfigError('--search needs Optuna. Install it with: pip install "fidgpt[search]"')
    from fidgpt.sweep.search import Search

    search = Search(
        *_placed(("space",)),
        sampler=FLAGS.search,
        objective=_objective("search"),
        stop=FLAGS.stop[-1] if FLAGS.stop else None,
        seed=FLAGS.search_seed,
        directory=FLAGS.run_dir,
        allowed=tuple(FLAGS.allow),
    )
    if FLAGS.print:
        console.print(search)
        return None
    found = search.run(jobs=FLAGS.jobs, retries=FLAGS.retries, console=console)
    console.print(found)
    return 0 if found.is_whole else _stopped(console, search.directory)


def _bisect(console: "Console") -> int | None:
    from fidgpt.graph import ConfigError
    from fidgpt.sweep import LocalRunner
    from fidgpt.sweep.bisect import Bisection, Measuring, Stopped

    _refuse("config", "search", "search_seed", "stop", *_PLACED)
    good, _, bad = FLAGS.bisect.rpartition(":")
    if not (good and bad):
        raise ConfigError("--bisect needs two run directories: --bisect=runs/good:runs/bad")
    objective = _objective("bisect")
    bisection = Bisection(
        good,
        bad,
        objective=objective,
        threshold=FLAGS.threshold,
        steps=FLAGS.steps,
        directory=FLAGS.run_dir,
        allowed=tuple(FLAGS.allow),
    )
    if FLAGS.print:
        console.print(bisection)
        return None
    measuring = Measuring(
        bisection.directory,
        objective=objective,
        runner=LocalRunner(jobs=FLAGS.jobs, retries=FLAGS.retries),
        flags=[f"--allow={one}" for one in FLAGS.allow],
        console=console,
    )
    try:
        found = bisection.find(
            measuring,
            jobs=FLAGS.jobs,
            say=lambda text: console.print(text, soft_wrap=True, markup=False, emoji=False),
        )
    except Stopped:
        return _stopped(console, bisection.directory)
    console.print(found, soft_wrap=True)
    return None


def _stopped(console: "Console", directory: Path) -> int:
    console.print(f"Stopped; the same command goes on in {directory}", soft_wrap=True)
    return app.INTERRUPTED


def _objective(flag: str) -> str:
    from fidgpt.graph import ConfigError

    if not FLAGS.objective:
        raise ConfigError(f"--{flag} needs a number to compare: --objective=validation/loss")
    return FLAGS.objective


def _refuse(*names: str) -> None:
    """Refuses flags that say nothing here.

    Raises:
      ConfigError: one of them was given.
    """
    from fidgpt.graph import ConfigError

    what = next((f"--{one}" for one in ("bisect", "search") if FLAGS[one].present), "a sweep")
    for name in names:
        if FLAGS[name].present:
            raise ConfigError(f"--{name} says nothing to {what}: leave one of them out.")


def _sweep() -> "Sweep":
    """The sweep that the flags say.

    Raises:
      ConfigError: there is no axis, or one is wrong.
    """
    from fidgpt.graph import ConfigError
    from fidgpt.sweep import Sweep

    if not any(FLAGS[name].value for name in _AXES):
        raise ConfigError("name an axis: --sweep=tag:LearningRate=1e-3,3e-3")
    return Sweep(*_placed(_AXES), directory=FLAGS.run_dir, allowed=tuple(FLAGS.allow))


def _placed(names: Sequence[str]) -> list[Any]:
    """The directives, with axes or spaces in their places among them.

    Raises:
      ConfigError: one of those is wrong.
    """
    said = [(placed, name) for name in names for placed in FLAGS[name].value or []]
    directives = list(FLAGS.config)
    items: list[Any] = []
    for placed, name in sorted(said):
        num_before = placed.place[0] - (len(FLAGS.config) - len(directives))
        items += [*directives[:num_before], _item(name, placed.text)]
        directives = directives[num_before:]
    return [*items, *directives]


def _item(name: str, text: str) -> "Axis | Space":
    if name == "space":
        from fidgpt.sweep.search import space

        return space(text)
    from fidgpt.sweep import ablation, axis, pairs, repeat

    return {"sweep": axis, "zip": pairs, "repeat": repeat, "ablate": ablation}[name](text)


if __name__ == "__main__":
    run()
