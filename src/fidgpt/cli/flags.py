"""The flags that `train.py` and `sweep.py` share."""

import math
from collections.abc import Sequence
from typing import Any

from absl import flags

from fidgpt.cli.app import define_path
from fidgpt.compose.directives import DEFAULT_CONFIG
from fidgpt.errors import ConfigError

FLAGS = flags.FLAGS


class OptionalText(flags.Flag):
    """A flag that may stand alone (`--print`) or have a value (`--print=json`)."""

    def __init__(self, name: str, *, alone: str, help: str, choices: Sequence[str] = ()) -> None:
        words = [*choices, "true", "false"]
        parser = flags.EnumParser(words) if choices else flags.ArgumentParser()
        super().__init__(parser, flags.ArgumentSerializer(), name, None, help, boolean=True)
        self._alone = alone

    def _parse(self, argument: Any) -> str | None:
        text = str(super()._parse(argument))
        return {"true": self._alone, "false": None}.get(text.lower(), text)


flags.DEFINE_multi_string(
    "config",
    [],
    "A directive, of the kinds below. Repeatable; applied in the order given, to "
    f"config:{DEFAULT_CONFIG} unless the first one names another start.",
)
flags.DEFINE_flag(
    OptionalText(
        "print",
        alone="text",
        choices=[
            *("text", "flat", "yaml", "json", "python", "html", "svg"),
            *("base", "defaults", "summary", "plan", "plan-html", "schedule", "speed"),
            *("batch", "schema"),
        ],
        help="Print what would run without training: as text, as lines `path = value`, as yaml, "
        "json, python code, a page for a browser or a drawing, only what differs from its base or "
        "from the defaults, what it costs, its memory and speed on a mesh or all of them as "
        "text or page, its learning rate schedule, how fast this machine is in "
        "each number format, the first rows of its first batch, or the JSON schema of its "
        "overrides for an editor.",
    )
)
flags.DEFINE_string(
    "hardware", None, "The machine that --print, prices and fiddler:for_hardware see: h100x8."
)
flags.DEFINE_float("price", None, "Of a device for an hour, for plans.")
flags.register_validator(
    "price",
    lambda price: price is None or 0 < price < math.inf,  # which nan is not
    message="must be above 0, and finite.",
)
define_path("run_dir", "Directory of the new run, runs/NAME-TIME by default; or of a whole sweep.")
flags.DEFINE_flag(
    OptionalText(
        "list",
        alone="all",
        help="List names: all, or configs, fiddlers, tags, parts, parts:PATH (those that "
        "fit there), knobs, knobs:PATH (those below).",
    )
)
flags.DEFINE_enum(
    "completion",
    None,
    ["bash", "zsh", "fish"],
    "Print the shell completion script of these commands, to be sourced.",
)


def answered(arguments: list[str]) -> bool:
    """Print what `--completion` or `--list` asks for; return False if neither is given.

    Raises:
      ConfigError: there is an argument that is not a flag, or what is asked for does not exist.
    """
    if arguments:
        raise ConfigError(f"{arguments[0]!r} stands after --, where no directive is read.")
    if FLAGS.completion:
        from fidgpt.cli.completion import script

        print(script(FLAGS.completion), end="")
    elif FLAGS.list is not None:
        from fidgpt.cli.listing import print_listing

        print_listing(FLAGS.list, FLAGS.config, FLAGS.allow)
    return bool(FLAGS.completion) or FLAGS.list is not None
