"""The flags that `train.py` and `sweep.py` share."""

from absl import flags

from fidgpt.cli.app import OptionalText

FLAGS = flags.FLAGS

flags.DEFINE_multi_string(
    "config",
    [],
    "A directive: config:NAME(args), config_file:PATH, config_str:TEXT, fiddler:NAME(args), "
    "set:PATH=VALUE or tag:NAME=VALUE (or *=, +=, -=), del:PATH, use:PATH=PART(args), "
    "tie:PATH=PATH, untie:PATH or patch:FILE. Repeated; applied in the order given, on config:base "
    "unless the first one says where to begin.",
)
flags.DEFINE_flag(
    OptionalText(
        "print",
        alone="text",
        choices=[
            *("text", "flat", "yaml", "json", "python", "html", "svg"),
            *("base", "defaults", "summary", "schedule"),
        ],
        help_text="Print what would run, and train nothing: as text, as lines `path = value`, as "
        "yaml, json, python code, a page for a browser or a drawing, only what differs from "
        "its base or from the defaults, what it costs, or how its learning rate goes.",
    )
)
flags.DEFINE_string(
    "run_dir", None, "Directory of the new run, runs/NAME-TIME by default; or of a whole sweep."
)


def refuse_arguments(arguments: list[str]) -> None:
    """Refuses what stands on the command line and is no flag.

    Raises:
      ConfigError: there is something.
    """
    if arguments:
        from fidgpt.graph import ConfigError  # late: only who is wrong waits for it

        raise ConfigError(
            f"{arguments[0]!r} is no flag. What changes a config is said in --config, for "
            "example --config=set:num_steps=200."
        )
