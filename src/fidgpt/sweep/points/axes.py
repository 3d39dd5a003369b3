"""What varies in a sweep: axes whose values multiply, go in pairs, repeat or are left out."""

from collections.abc import Iterable
from dataclasses import dataclass

from fidgpt.cli.directives.changes import assignment
from fidgpt.cli.directives.spelling import KINDS, split_directive
from fidgpt.graph import ConfigError
from fidgpt.graph.typed.calls import split_at_commas
from fidgpt.sweep.points.values import expanded

ASSIGNED = ("set", "tag", "use", "tie")  # kinds of directives that have a value after a sign
NUMBERS = ("set", "tag")  # those of which it may be a number
_REPEAT = "--repeat="


@dataclass(frozen=True)
class Choice:
    """One value of an axis.

    Attributes:
      directives: those that say it; none where something is left out.
      label: what it is called, where its directives alone would not say.
    """

    directives: tuple[str, ...]
    label: str | None = None


@dataclass(frozen=True)
class Axis:
    """One thing that varies, in the place where its directives belong among the others.

    Attributes:
      text: how it was said, for messages.
      choices: its values.
    """

    text: str
    choices: tuple[Choice, ...]

    @property
    def is_repeat(self) -> bool:
        """Whether it is there to run the same again with other seeds."""
        return self.text.startswith(_REPEAT)


Item = str | Axis  # a directive, or something that varies in its place


def axis(text: str, values: Iterable[object] | None = None) -> Axis:
    """An axis of one directive: `tag:LearningRate=1e-4,3e-4`, `fiddler:use_rope,use_alibi`.

    Args:
      text: the directive with its values, or without them: `tag:LearningRate`.
      values: the values, where the text has none.

    Raises:
      ConfigError: the axis has no values.
    """
    if values is not None:
        separator = "=" if split_directive(text)[0] in ASSIGNED else ""
        separator = "" if text.endswith((":", "=")) else separator or ":"
        text += separator + ",".join(map(str, values))
    return Axis(f"--sweep={text}", tuple(Choice((one,)) for one in axis_values(text)))


def pairs(text: str) -> Axis:
    """Several directives that change together: `set:a=1,2;tag:B=3,4` is (1, 3) and (2, 4).

    Raises:
      ConfigError: one of them has no values, or not as many as the others.
    """
    columns = {one: axis_values(one, flag="--zip") for one in _pieces(text)}
    counts = {len(column) for column in columns.values()}
    if len(columns) < 2:
        raise ConfigError(f"--zip={text} pairs nothing: put a ; between two axes, and quote them.")
    if len(counts) > 1:
        told = "\n".join(f"  {len(values)} values: {one}" for one, values in columns.items())
        raise ConfigError(f"--zip pairs axes of one length, and these differ:\n{told}")
    rows = zip(*columns.values(), strict=True)
    return Axis(f"--zip={text}", tuple(Choice(row) for row in rows))


def repeat(text: str) -> Axis:
    """The same runs with other seeds: `seed:3` is the seed of the config, and the next two.

    Raises:
      ConfigError: there is no count.
    """
    what, _, count = text.rpartition(":")
    if not what or not count.strip().isdecimal() or int(count) < 1:
        raise ConfigError(f"--repeat={text} says not what, or how often: write --repeat=seed:3.")
    directive = what if split_directive(what)[0] else f"set:{what}"
    choices = tuple(Choice((f"{directive}+={i}",)) for i in range(int(count)))
    return Axis(f"{_REPEAT}{text}", choices)


def ablation(text: str) -> Axis:
    """All of some directives, then all but one of them, for each: `fiddler:use_gqa,use_moe`.

    Directives of several kinds stand with a `;` between them. A run with none of them is not
    among the values: an ablation asks what each one adds to the others.

    Raises:
      ConfigError: there is nothing to leave out.
    """
    every = tuple(one for piece in _pieces(text) for one in axis_values(piece, flag="--ablate"))
    if not every:
        raise ConfigError(f"--ablate={text} leaves nothing out: write --ablate=fiddler:A,B.")
    if len(set(every)) < len(every):
        raise ConfigError(f"--ablate={text} names one directive twice.")
    without = [
        Choice(every[:i] + every[i + 1 :], f"without {split_directive(one)[1].strip()}")
        for i, one in enumerate(every)
    ]
    return Axis(f"--ablate={text}", (Choice(every, "all"), *without))


def axis_values(text: str, *, flag: str = "--sweep") -> list[str]:
    """The directives that an axis of one directive stands for: one for each of its values.

    Raises:
      ConfigError: the axis has no values.
    """
    kind, rest = split_directive(text)
    if kind not in KINDS:
        raise ConfigError(
            f"{flag}={text} says not which kind of directive it is: write, for example, "
            "tag:LearningRate=1e-3,3e-3 or fiddler:use_rope,use_alibi."
        )
    no_values = f"{flag}={text} has no values: write KIND:NAME=VALUE,VALUE."
    try:
        right = assignment(rest, text)[2] if kind in ASSIGNED else rest
    except ConfigError:
        raise ConfigError(no_values) from None
    values = [value.strip() for value in split_at_commas(right)]
    if not values:
        raise ConfigError(no_values)
    if kind in NUMBERS:
        values = [one for value in values for one in expanded(value)]
    prefix = f"{kind}:{rest.removesuffix(right)}"
    return [prefix + value for value in values]


def _pieces(text: str) -> list[str]:
    """What stands between semicolons, outside of brackets and quotes."""
    swapped = text.translate(str.maketrans(",;", ";,"))
    return [
        piece.translate(str.maketrans(",;", ";,")).strip() for piece in split_at_commas(swapped)
    ]
