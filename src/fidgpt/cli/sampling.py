"""Flags of the commands that write text: how a token is chosen, and how many."""

from typing import Any

from absl import flags

FLAGS = flags.FLAGS

flags.DEFINE_integer("num_tokens", None, "Maximum number of new tokens; sample writes 200.", 1)
flags.DEFINE_float(
    "temperature", None, "0 is greedy, 1 the model's distribution; default 0.6.", 0.0
)
flags.DEFINE_integer("top_k", None, "Sample from this many of the likeliest tokens; 0 for all.", 0)
flags.DEFINE_float("top_p", None, "Sample from the smallest set this likely together.", 0.0, 1.0)
flags.DEFINE_integer("seed", 0, "Seed of the sampling.")
flags.DEFINE_boolean("float32", False, "Generate in float32 whatever the run's precision.")


def chosen(**defaults: Any) -> dict[str, Any]:
    """Return the values of flags by their names, each with the default of the command."""
    values = {name: FLAGS[name].value for name in defaults}
    return {name: defaults[name] if value is None else value for name, value in values.items()}
