"""Words without a flag: `train.py base make_large model.hidden_dim=1024` means directives.

Importing it loads neither torch nor Fiddle, because completion reads it.
"""

import os
import re
from collections.abc import Iterable, Sequence

from absl import flags

from fidgpt.compose.directives import DIRECTIVES, assigns, split_assignment, split_directive
from fidgpt.errors import ConfigError, suggest

_CALL = re.compile(r"([A-Za-z_][\w.]*)\s*(\(.*\))?", re.DOTALL)
_PATH = re.compile(r"[A-Za-z_@*][^(=]*")
_RANGE = re.compile(r"(?:lin|log|range)\(.*\)", re.DOTALL)
_NAMED = ("config", "fiddler")


def with_flags(arguments: Sequence[str], known: flags.FlagValues) -> list[str]:
    """Return a command line in which every word is a flag or the value of a flag.

    A word becomes a value of `--config`. In a sweep, a word with several values becomes an axis: a
    value of `--sweep`, or of `--space` if there is a `--search`. `PATH=VALUE` means `set:`, a
    capital name before `=` means `tag:`, a name means `config:` or `fiddler:`, and a file or the
    directory of a run means `config_file:` or `yaml:`.

    Args:
      arguments: the words behind the command.
      known: the flags of the command.

    Raises:
      ConfigError: a word names nothing, or may mean several things.
    """
    is_search = any(word.partition("=")[0] == "--search" for word in arguments)
    axis = "--space" if is_search else "--sweep" if "sweep" in known else "--config"
    read, words = [], [*arguments]
    while words:
        word = words.pop(0)
        if word == "--":
            return [*read, word, *words]
        if word.startswith("-") and word != "-":
            read.append(word)
            if words and _takes_next(word, known):
                read.append(words.pop(0))
            continue
        directive, has_values = _directive(word, _allowed(arguments))
        read.append(f"{axis if has_values else '--config'}={directive}")
    return read


def meanings(arguments: Sequence[str], translated: Iterable[str]) -> list[str]:
    """Return what words were taken for, as `make_large: --config=fiddler:make_large`."""
    pairs = zip(arguments, translated, strict=True)
    return [f"{word}: {meant}" for word, meant in pairs if word != meant]


def _takes_next(word: str, known: flags.FlagValues) -> bool:
    """Whether a flag has its value in the next word."""
    name = word.lstrip("-")
    return "=" not in word and name in known and not known[name].boolean


def _allowed(arguments: Sequence[str]) -> list[str]:
    flag = "--allow="
    return [word.removeprefix(flag) for word in arguments if word.startswith(flag)]


def _directive(word: str, allowed: Sequence[str]) -> tuple[str, bool]:
    """Return the directive that a word means, and whether it has several values."""
    kind = split_directive(word)[0]
    if kind in DIRECTIVES:
        return word, _has_values(word)
    if (file := _file(word)) is not None:
        return file, False
    if "=" in word and _PATH.fullmatch(word.partition("=")[0]):
        name = split_assignment(word)[0]
        directive = f"{'tag' if name.isidentifier() and name[0].isupper() else 'set'}:{word}"
        return directive, _has_values(directive)
    names = _split(word) or [word]
    kinds = {_kind_of(name, allowed) for name in names}
    if len(kinds) > 1:
        raise ConfigError(f"{word} names configs and fiddlers: write them as words of their own.")
    return f"{kinds.pop()}:{word}", len(names) > 1


def _has_values(directive: str) -> bool:
    kind, rest = split_directive(directive)
    value = split_assignment(rest)[2] if assigns(kind) else rest
    return len(_split(value)) > 1 or bool(_RANGE.fullmatch(value.strip()))


def _split(text: str) -> list[str]:
    from fidgpt.graph.expressions import split_at_commas  # late: takes Fiddle

    return split_at_commas(text)


def _file(word: str) -> str | None:
    """Return the directive for a word that is a file or a directory of a run; None otherwise."""
    path = os.path.expanduser(word)
    if word.endswith((".yaml", ".yml")):
        return f"yaml:{word}"
    is_run = os.path.isfile(os.path.join(path, "config.json"))
    return f"config_file:{word}" if is_run or word.endswith(".json") else None


def _kind_of(word: str, allowed: Sequence[str]) -> str:
    """Return whether a name, which may have arguments, names a config or a fiddler.

    Raises:
      ConfigError: it is neither, or both.
    """
    from fidgpt.compose.index import index_for

    call = _CALL.fullmatch(word.strip())
    name = call[1] if call else word
    kinds: list[str] = []
    for wait in (False, True):  # a name that is missing may be younger than the index
        index = index_for([], allowed, wait=wait)
        kinds = [kind for kind in _NAMED if name in index[f"{kind}s"]]
        if kinds:
            break
    if len(kinds) == 1:
        return kinds[0]
    if kinds or (call and "." in name):
        either = " or ".join(f"{kind}:{word}" for kind in _NAMED)
        raise ConfigError(f"{word} may be a config or a fiddler: write {either}.")
    every = [name for kind in _NAMED for name in index[f"{kind}s"]]
    raise ConfigError(
        f"there is no config, fiddler, file or run {word!r}. {suggest(name, every)}\n"
        "  Words are names of configs and fiddlers, and PATH=VALUE: base make_large "
        "model.hidden_dim=1024."
    )
