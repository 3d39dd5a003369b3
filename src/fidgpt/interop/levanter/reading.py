"""Training files of Levanter (Draccus YAML) as directives for our parts."""

from dataclasses import dataclass
from typing import Any

from fidgpt.graph import ConfigError
from fidgpt.graph.errors import raise_all
from fidgpt.interop.directives_from import bring_about
from fidgpt.interop.levanter.data import map_data
from fidgpt.interop.levanter.model import map_model
from fidgpt.interop.levanter.section import Plan, Section
from fidgpt.interop.levanter.training import map_optimizer, map_trainer
from fidgpt.interop.yaml_in import read_yaml

_OFF: dict[str, Any] = {
    "initialize_from_hf": False,
    "use_hf_model_config": False,
    "hf_save_path": None,
    "hf_upload": None,
    "hf_save_dtype": None,
    "data_seed": None,
    "initialize_from_checkpoint_path": None,
    "epoch": 0,
    "eval_harness": None,
    "log_entropy": False,
}


@dataclass(frozen=True, slots=True)
class Mapped:
    """What a file of another system becomes here.

    Attributes:
      directives: a named config, and what changes it; `cli.directives.compose` makes the graph.
      unmapped: `path: value (why)` for each entry of the file that no directive says. Defaults of
        the other system that matter and cannot be had are among them.
    """

    directives: list[str]
    unmapped: list[str]


def read_levanter(text: str) -> Mapped:
    """The directives for a Levanter training file, and what of it they leave out.

    Where the file says nothing, Levanter's own defaults are meant, as of 2025. What no entry of
    such a file says stays as it is in `base` or `gpt2_124m`: the text, the tokenizer trained on
    it, how weights start beyond their standard deviation, what is printed.

    Raises:
      ConfigErrors: entries that make no sense, all in one go.
      ConfigError: the text is no YAML of plain data.
    """
    plan = Plan()
    document = read_yaml(text, source="the Levanter file", foreign=("!include",))
    top = Section(plan, "", document if isinstance(document, dict) else {})
    if not isinstance(document, dict):
        raise ConfigError("the Levanter file is no mapping with model:, optimizer: and trainer:.")
    num_steps = map_trainer(top.section("trainer"))
    map_optimizer(top.section("optimizer"), num_steps)
    map_model(top.section("model"), top.take("train_seq_len", None, int))
    map_data(top.section("data"))
    if weight := top.take("z_loss_weight", 0.0, float):
        plan.changes.append(f"fiddler:use_z_loss(weight={weight!r})")
    top.neutral(_OFF)
    top.close()
    raise_all(plan.mistakes)
    directives = bring_about([plan.config, *plan.changes], plan.wanted)
    return Mapped([*directives, *plan.last], plan.unmapped)
