"""`python -m fidgpt.interop PATH`: the command for a file of another trainer, or for a model.

Of a file of Levanter, torchtitan, torchtune, Axolotl, LLaMA-Factory or TRL, or a function of
torchtitan's registries, it prints the command of fidgpt that does the same, and below it, as
comments, what has no equivalent.

Of a directory of a Hugging Face model whose type fidgpt knows, it prints the family; the setting
that each key of config.json became, or why it became none; each tensor with its shape and its
parameter; and whether all tensors fit, whether the logits of 16 tokens are finite, and how far they
are from those of transformers, where that is installed.

Of a directory of another type, it prints the lines of Python with which a family of your own
begins, near the family with the fewest misfits, and as comments these misfits: keys and tensors.
"""

import re
import shlex
from pathlib import Path

from fidgpt.compose.catalogue import called, imported
from fidgpt.compose.reproduction import program
from fidgpt.compose.sources import read_text
from fidgpt.errors import run_command
from fidgpt.graph import ConfigError
from fidgpt.interop import Mapped, read_fine_tuning, read_levanter, read_torchtitan, read_torchtune
from fidgpt.interop.hugging_face.trial import describe_hf

_USAGE = (
    "name a TOML file of torchtitan, a YAML file of Levanter, torchtune, Axolotl, LLaMA-Factory or "
    "TRL, a function of torchtitan's registries, such as "
    "torchtitan.models.llama3.config_registry.llama3_8b, or the directory of a Hugging Face model"
)


def main(arguments: list[str]) -> int:
    """Print the command, and below it, as comments, what has no equivalent; return the status.

    Of a Hugging Face directory, print its table and whether it works.
    """
    if len(arguments) != 1:
        raise ConfigError(f"{_USAGE}: python -m fidgpt.interop PATH")
    if Path(arguments[0]).is_dir():
        print(*describe_hf(arguments[0]), sep="\n")
        return 0
    mapped = _read(arguments[0])
    flags = [shlex.quote(f"--config={directive}") for directive in mapped.directives]
    print(" ".join(program("train")), *flags, sep=" \\\n    ")
    print(*(f"# {' '.join(reason.split())}" for reason in mapped.unmapped), sep="\n")
    return 0


def _read(name: str) -> Mapped:
    match Path(name).suffix:
        case ".toml":
            return read_torchtitan(Path(name))
        case ".yaml" | ".yml":
            text = read_text(name)[1]
            is_torchtune = "_component_" in text and "torchtune" in text
            is_tuning = re.search("^(base_model|model_name_or_path):", text, re.MULTILINE)
            others = read_fine_tuning if is_tuning else read_levanter
            return (read_torchtune if is_torchtune else others)(Path(name))
    module, _, function = name.rpartition(".")
    make = getattr(imported(module, name), function, None) if module else None
    if not callable(make):
        raise ConfigError(f"{name} is neither a file nor a function: {_USAGE}.")
    return read_torchtitan(called(name, make))


if __name__ == "__main__":
    run_command(main)
