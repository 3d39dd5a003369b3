"""The flags that the commands have in common."""

from absl import flags

from fidgpt.cli.app import OptionalText

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
