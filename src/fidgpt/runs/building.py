"""Configs built, their models and optimizers tried without memory, and the user's consent.

Consent is for places that a config from a file sends to or runs code in. A constructor declares
them by parameter: `SENDS`, with the things sent to the place that the value names, and `RUNS`, with
the code executed there.
"""

import inspect
import math
import os
import re
import shlex
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import fiddle as fdl
import torch

from fidgpt import graph
from fidgpt.compose.catalogue import Catalogue
from fidgpt.compose.directives import kind_of
from fidgpt.configs import constraints as rules
from fidgpt.cost import one_block_of_each_kind, rehearsed, without_memory
from fidgpt.declarations import NeedsPresent
from fidgpt.files import trust, trusted
from fidgpt.graph import ConfigError, Resolved
from fidgpt.graph.building import Constraint, shown, shown_last
from fidgpt.graph.fiddle import set_arguments
from fidgpt.graph.walk import join, parts, step_to
from fidgpt.model.materialization import check_inits
from fidgpt.train import Trainer
from fidgpt.train.device import first_line, is_lack_of_memory
from fidgpt.train.estimates.facts import trainable_copy
from fidgpt.train.trackers.trackers import require_packages


class Risk(NamedTuple):
    """A value that sends something away, or has code run.

    Attributes:
      path: of the argument.
      does: what it does, as a verb with its object.
      value: a place.
    """

    path: str
    does: str
    value: str


def risks(root: fdl.Buildable | Resolved, *, sends: bool = True) -> Iterator[Risk]:
    """Yield what a graph may send and run; only what it runs with `sends` False."""
    for node in parts(Resolved.of(root).bound):
        called = fdl.get_callable(node.value)
        for attribute, does in (("SENDS", "sends {} to"), ("RUNS", "runs {} in"))[not sends :]:
            for name, what in getattr(called, attribute, {}).items():
                value = set_arguments(node.value).get(name)
                for item in value if isinstance(value, list | tuple) else [value]:
                    if item is not None and (attribute == "SENDS" or _is_path(item)):
                        yield Risk(join(node.path, step_to(name)), does.format(what), str(item))


def _is_path(value: Any) -> bool:
    """Return whether a value may be a path rather than a plain name."""
    is_name = isinstance(value, str) and re.fullmatch(r"[\w-]+", value)
    return not is_name or os.path.exists(value)


def require_consent(
    root: fdl.Buildable | Resolved, *, words: Sequence[str], is_loaded: bool, sends: bool = True
) -> list[str]:
    """Return a line for each place that a graph from a file sends to or runs code from.

    What a command itself has named on this machine is known from then on.

    Args:
      root: the graph.
      words: of the command, such as its directives; what files hold does not count.
      is_loaded: whether the graph, or a part of it, comes from a file.
      sends: whether anything is sent.

    Raises:
      ConfigError: the command does not name such a place, and none has before.
    """
    present = list(risks(root, sends=sends))
    if is_loaded:
        typed = [word for word in words if (kind := kind_of(word)) is None or kind.portable]
        named = {risk.value for risk in present if any(_names(word, risk.value) for word in typed)}
        allowed = named | trusted() if present else named
        if unknown := [risk for risk in present if risk.value not in allowed]:
            lines = [f"{risk.path} {risk.does} {risk.value!r:.200}" for risk in unknown]
            remedies = [*dict.fromkeys(shlex.quote(f"--trust={risk.value}") for risk in unknown)]
            raise ConfigError(
                "\n  ".join(["a file sets what no command on this machine has named:", *lines])
                + f"\nIf you want that, add {' '.join(remedies)}, which is remembered here; "
                "otherwise remove it from the config."
            )
    trust(risk.value for risk in present)
    return [f"this run {risk.does} {risk.value} ({risk.path})" for risk in present if is_loaded]


def _names(word: str, value: str) -> bool:
    """Return whether a word of a command contains a value, whole."""
    return re.search(rf"(?<![\w/.:-]){re.escape(value)}(?![\w/.:-])", word) is not None


_REMEDY = (
    "--debug shows the whole error, --print what each component inherits. Models are tried on the "
    "meta device: make tensors on the device of the input, as torch.arange(n, device=x.device), "
    "and read no values of them."
)
CONSTRAINTS = [vars(rules)[name] for name in rules.__all__]


def constraints_of(catalogue: Catalogue) -> list[Constraint]:
    """Return the constraints on a whole run, of fidgpt and of the projects of a catalogue.

    Raises:
      ConfigError: the constraints of a project cannot be imported.
    """
    return [*CONSTRAINTS, *catalogue.constraints]


def build_trainer(
    cfg: fdl.Config | Resolved, catalogue: Catalogue | None = None, *, will_run: bool = True
) -> Trainer:
    """Build a config, its model without memory, which takes seconds for any size.

    Args:
      cfg: the graph, or the graph resolved.
      catalogue: the names that made it, whose projects may have constraints.
      will_run: whether constraints on the whole run are checked.

    Raises:
      ConfigError: the graph is wrong, or makes no trainer, or its model cannot read or start, or
        its optimizer cannot be made.
    """
    constraints = constraints_of(catalogue) if catalogue else CONSTRAINTS
    within = {"model": torch.device("meta")}
    trainer = graph.build(cfg, constraints=constraints if will_run else (), within=within)
    if not isinstance(trainer, Trainer):
        raise ConfigError(
            f"the config builds {type(trainer).__name__}, and what runs is a Trainer. In a script "
            "of your own, graph.build(compose(directives).config) builds it: see docs/python.md."
        )
    try_model(trainer)
    try_optimizer(trainer, groups_of(trainer))
    return trainer


def require_present(cfg: Resolved, trainer: Trainer) -> None:
    """Look for the files and packages without which a run would end before its first step.

    Raises:
      DataError, RunError, CheckpointError: the first that is not on this machine, or does not fit.
    """
    require_packages(trainer.trackers)
    for node in parts(cfg.bound):
        function = fdl.get_callable(node.value)
        if inspect.isfunction(function) and "require_present" in vars(function):
            arguments = {str(key): argument for key, argument in set_arguments(node.value).items()}
            vars(function)["require_present"](model=trainer.model, **arguments)
        elif hasattr(function, "require_present"):
            part: NeedsPresent = fdl.build(node.value)
            part.require_present()


def try_model(trainer: Trainer) -> None:
    """Pass one sequence through a model, and check that its parameters can be initialized.

    Raises:
      InitError: a component does not define how it is initialized.
      ConfigError: components of the model do not fit each other.
    """
    check_inits(trainer.model)
    seq_len, device, out = trainer.seq_len, trainer.parallel.device, None
    with one_block_of_each_kind(trainer.model):
        (model,) = rehearsed([trainer.model], num_tokens=seq_len, device=device)
        if model.device.type != "meta":
            # Tensors made without a device are on the wrong one, as they would be on a GPU. Without
            # gradients, nothing is compiled. If the pass fails, the meta device decides.
            with suppress(Exception), torch.device("meta"), torch.no_grad():
                out = model(torch.zeros(1, seq_len, dtype=torch.int64, device=device))
            if out is None:
                model = without_memory(trainer.model)  # which a module may change when it runs
    try:
        if out is None:
            out = model(torch.zeros(1, seq_len, dtype=torch.int64, device="meta"))
    except Exception as error:  # whatever goes wrong in a user's model
        sequence, remedy = f"a sequence of {seq_len=}", ""
        if is_lack_of_memory(error):  # such as more bytes than a machine can address
            problem = f"{sequence} is too long for this model: choose a shorter one."
        elif isinstance(error, ImportError):
            problem = "a package that the model needs is missing."
        else:
            problem = f"the model cannot read {sequence}: its components do not fit together."
            remedy = f"\n  {_REMEDY}"
        line = f"{_where(model, error)}{first_line(error):.200}"
        raise ConfigError(f"{problem}\n  {line}{remedy}") from error
    _require_logits(trainer, out)


def _require_logits(trainer: Trainer, out: object) -> None:
    """Raise ConfigError unless a model returned logits [1, seq_len, vocab_size or more]."""
    shape = list(out.shape) if isinstance(out, torch.Tensor) else type(out).__name__
    sizes = [1, trainer.seq_len, trainer.vocab_size]
    if not isinstance(shape, list) or shape[:2] != sizes[:2] or len(shape) != 3:
        problem = "its features are [batch, seq, hidden], and its unembedding makes logits of them."
    elif shape[2] < sizes[2]:
        problem = "tokens are from 0 to vocab_size - 1: give the unembedding as many rows."
    else:
        return
    raise ConfigError(
        f"the model ({type(trainer.model).__name__}) returns {shape} for one sequence, where "
        f"vocab_size={trainer.vocab_size} needs logits {sizes}: {problem}"
    )


def _where(model: torch.nn.Module, error: Exception) -> str:
    """Return the innermost module whose own code failed, and the line; "" if there is none."""
    names = {id(module): name for name, module in model.named_modules() if name}
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        module = frame.f_locals.get("self")
        is_torchs = frame.f_globals.get("__name__", "").startswith("torch.")
        if id(module) in names and not is_torchs:
            file = Path(frame.f_code.co_filename).name
            return f"{names[id(module)]} ({type(module).__name__}), {file}:{line}: "
    return ""


def groups_of(trainer: Trainer) -> list[dict[str, Any]] | None:
    """Split the parameters of a model into groups, as the run will; None if that needs values.

    Raises:
      ConfigError: there are no such groups.
    """
    model = trainer.model
    if trainer.trainable is not None:
        model = _result_of("trainable", lambda m: trainable_copy(m, trainer.trainable), model)
    return _result_of("groups", trainer.groups, model)


def try_optimizer(trainer: Trainer, groups: list[dict[str, Any]] | None) -> None:
    """Make the optimizer of some groups of parameters, as the run will.

    Raises:
      ConfigError: the optimizer rejects its arguments, or one of them is infinite.
    """
    optimizer = _result_of("optimizer", trainer.optimizer, groups) if groups else None
    for group in optimizer.param_groups if optimizer is not None else ():
        for name, value in group.items():
            numbers = value if isinstance(value, list | tuple) else [value]
            is_number = (isinstance(n, int | float) and math.isinf(n) for n in numbers)
            if name != "params" and any(is_number):
                raise ConfigError(
                    f"optimizer: {name}={value!r} must be finite.",
                    place="optimizer",
                    sources=[f"optimizer.{name}"],
                )


def _result_of(place: str, make: Callable[[Any], Any], argument: Any) -> Any:
    """Return what a user's function makes of a model without memory; None if it needs values."""
    try:
        return make(argument)
    except RuntimeError:  # as of tensors that have none
        return None
    except (TypeError, ValueError) as error:
        arguments = getattr(make, "keywords", {})
        names = shown(str(error), arguments) or shown_last(str(error), arguments)
        sources = [f"{place}.{name}" for name in names]
        raise ConfigError(f"{place}: {error}", place=place, sources=sources) from error
