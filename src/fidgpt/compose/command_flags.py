"""The flags of each command, for completion."""

import importlib
from typing import Any

from absl import flags

from fidgpt.compose.index import COMMANDS

_OF_ALL = "fidgpt.cli.app"

_OF_TRAINED = "fidgpt.cli.trained"
_COMPOSING = ("train", "sweep")  # the commands that take directives


def command_flags() -> dict[str, list[dict[str, Any]]]:
    """By command, its flags: name, help, whether it may stand alone, and the values it takes."""
    for module in COMMANDS.values():
        importlib.import_module(module)
    by_module = flags.FLAGS.flags_by_module_dict()
    shared = [name for name in by_module if _is_shared(name)]
    used = {
        command: [module, *(shared if command in _COMPOSING else [_OF_TRAINED, _OF_ALL])]
        for command, module in COMMANDS.items()
    }
    return {
        command: [_entry(flag) for name in modules for flag in by_module.get(name, [])]
        for command, modules in used.items()
    }


def _is_shared(module: str) -> bool:
    return module.startswith("fidgpt.cli.") and module not in {*COMMANDS.values(), _OF_TRAINED}


def _entry(flag: flags.Flag) -> dict[str, Any]:
    entry: dict[str, Any] = {"name": flag.name, "help": " ".join((flag.help or "").split())}
    entry["help"] = entry["help"].partition("; repeat this option")[0]
    if flag.boolean:
        entry["alone"] = True
    values = getattr(flag.parser, "enum_values", None) or []
    words = [word for word in values if word not in ("true", "false")]
    return entry | ({"choices": words} if words else {})
