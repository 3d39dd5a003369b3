"""The flags that the commands have in common."""

from absl import flags

from fidgpt.cli.app import OptionalText
from fidgpt.graph import ConfigError

FLAGS = flags.FLAGS

flags.DEFINE_multi_string(
    "config",
    [],
    "A directive: config:NAME(args), config_file:PATH, fiddler:NAME(args), set:PATH=VALUE or "
    "tag:NAME=VALUE. Repeated; applied in the order given, on config:base unless the first one "
    "says where to begin.",
)
flags.DEFINE_flag(
    OptionalText(
        "print",
        alone="text",
        choices=["text", "json"],
        help_text="Print what would run, as text or as json, and train nothing.",
    )
)
flags.DEFINE_string("run_dir", None, "Directory of the new run; runs/NAME-TIME unless said.")


def refuse_arguments(arguments: list[str]) -> None:
    """Refuses what stands on the command line and is no flag.

    Raises:
      ConfigError: there is something.
    """
    if arguments:
        raise ConfigError(
            f"{arguments[0]!r} is no flag. What changes a config is said in --config, for "
            "example --config=set:num_steps=200."
        )
