"""Flags of sweeps and the runners that they choose."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from absl import flags

from fidgpt.cli.flags import FLAGS

if TYPE_CHECKING:
    from fidgpt.sweep import Axis
    from fidgpt.sweep.search import Space


AXES = ("sweep", "zip", "repeat", "ablate")
PLACED = (*AXES, "space")


class _Placed(NamedTuple):
    """What a flag said, and how many directives and axes were said before it."""

    place: tuple[int, int]
    text: str


class _InPlace(flags.MultiFlag):
    """A flag that may be repeated, whose place among the directives counts."""

    def __init__(self, name: str, help_text: str) -> None:
        super().__init__(flags.ArgumentParser(), flags.ArgumentSerializer(), name, [], help_text)

    def _parse(self, arguments: Any) -> list[Any]:
        axes = sum(FLAGS[name].present for name in PLACED if name in FLAGS)
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
    allow_override=True,  # the completion of all commands knows that of fidgpt.cli.sample, too
)
flags.DEFINE_string(
    "bisect", None, "GOOD:BAD, two run directories: find the difference that made it bad."
)
flags.DEFINE_float("threshold", None, "From where on --bisect calls a value bad; half-way.")
flags.DEFINE_integer("steps", None, "How long --bisect trains each run.", lower_bound=1)
flags.DEFINE_string(
    "objective",
    None,
    "What points are compared by, and --search makes small: validation/loss; large, where it "
    "begins with max: as max:tasks/arc_easy/acc does.",
)
flags.DEFINE_string(
    "runner",
    "local",
    "What runs the points: local, ray(address=auto,gpus=1) or slurm(partition=gpu,timeout_min=60).",
)
flags.DEFINE_integer("jobs", 1, "Points that are trained side by side.", lower_bound=1)
flags.DEFINE_integer(
    "retries",
    0,
    "How often a point that failed is tried again, on from where it was.",
    lower_bound=0,
)


def placed(names: Sequence[str]) -> list[Any]:
    """The directives, with axes or spaces in their places among them.

    Raises:
      ConfigError: one of those is wrong.
    """
    said = [(one, name) for name in names for one in FLAGS[name].value or []]
    directives = list(FLAGS.config)
    items: list[Any] = []
    for one, name in sorted(said):
        num_before = one.place[0] - (len(FLAGS.config) - len(directives))
        items += [*directives[:num_before], _item(name, one.text)]
        directives = directives[num_before:]
    return [*items, *directives]


def _item(name: str, text: str) -> "Axis | Space":
    if name == "space":
        from fidgpt.sweep.search import space

        return space(text)
    from fidgpt.sweep import ablation, axis, pairs, repeat

    return {"sweep": axis, "zip": pairs, "repeat": repeat, "ablate": ablation}[name](text)
