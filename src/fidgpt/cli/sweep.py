"""The command `sweep.py`: many configs as one set, each point trained once."""

from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from fidgpt.cli import app, asked
from fidgpt.cli.flags import FLAGS, refuse_arguments

if TYPE_CHECKING:
    from fidgpt.sweep import Axis, Sweep

_AXES = ("sweep", "zip", "repeat", "ablate")


class _Placed(NamedTuple):
    """What a flag said, and how many directives and axes were said before it."""

    place: tuple[int, int]
    text: str


class _InPlace(flags.MultiFlag):
    """A flag that may be repeated, whose place among the directives counts."""

    def __init__(self, name: str, help_text: str) -> None:
        super().__init__(flags.ArgumentParser(), flags.ArgumentSerializer(), name, [], help_text)

    def _parse(self, arguments: Any) -> list[Any]:
        axes = sum(FLAGS[name].present for name in _AXES if name in FLAGS)
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

    sweep = _sweep()
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 1000  # nothing is there to be filled, and a row stays in one line
    if FLAGS.print:
        console.print(sweep)
        return None
    results = sweep.run(jobs=FLAGS.jobs, retries=FLAGS.retries, console=console)
    console.print(results)
    statuses = {row["status"] for row in results}
    if statuses & {"waiting", "running", "stopped"}:
        console.print(f"Stopped; the same command goes on in {sweep.directory}", soft_wrap=True)
        return app.INTERRUPTED
    return 1 if statuses & {"failed", "diverged"} else 0


def _sweep() -> "Sweep":
    """The sweep that the flags say, its axes in their places among the directives.

    Raises:
      ConfigError: there is no axis, or one is wrong.
    """
    from fidgpt.graph import ConfigError
    from fidgpt.sweep import Sweep

    said = [(placed, name) for name in _AXES for placed in FLAGS[name].value or []]
    if not said:
        raise ConfigError("name an axis: --sweep=tag:LearningRate=1e-3,3e-3")
    directives = list(FLAGS.config)
    items: list[str | Axis] = []
    for placed, name in sorted(said):
        num_before = placed.place[0] - (len(FLAGS.config) - len(directives))
        items += [*directives[:num_before], _axis(name, placed.text)]
        directives = directives[num_before:]
    return Sweep(*items, *directives, directory=FLAGS.run_dir, allowed=tuple(FLAGS.allow))


def _axis(name: str, text: str) -> "Axis":
    from fidgpt.sweep import ablation, axis, pairs, repeat

    return {"sweep": axis, "zip": pairs, "repeat": repeat, "ablate": ablation}[name](text)


if __name__ == "__main__":
    run()
