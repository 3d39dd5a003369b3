"""Runs: configs built and tried, and the directories of new and resumed runs."""

import json
import math
import os
import platform
import re
import shlex
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import fiddle as fdl
import torch

from fidgpt import __version__, graph
from fidgpt.compose.catalogue import Catalogue
from fidgpt.compose.directives import DEFAULT_CONFIG, split_directive
from fidgpt.configs import constraints as rules
from fidgpt.cost import shortened, with_zeros, without_memory
from fidgpt.files import read_json
from fidgpt.graph import ConfigError, Resolved
from fidgpt.graph.bound import BoundGraph
from fidgpt.graph.building import Constraint, shown, shown_last
from fidgpt.graph.outlines import rows
from fidgpt.graph.permissions import allowed_changes
from fidgpt.graph.provenance import dump_provenance
from fidgpt.graph.secrets import redacted_value
from fidgpt.model.materialization import check_inits
from fidgpt.train import RunDirectory, Trainer
from fidgpt.train.device import first_line, is_lack_of_memory
from fidgpt.train.estimates.facts import trainable_copy
from fidgpt.train.run_directory import FLAGS_FILE

_REMEDY = (
    "--debug shows the whole error, --print what each component inherits. Models are tried on the "
    "meta device: make tensors on the device of the input, as torch.arange(n, device=x.device), "
    "and read no values of them."
)
# Variables that change what is computed, or how fast. Others may hold secrets.
_VARIABLE = re.compile(
    "(CUBLAS|CUDA|FIDGPT|GLOO|KMP|MKL|NCCL|OMP|PYTORCH)_|TORCH|PYTHONHASHSEED|NVIDIA_TF32|"
    "SLURM_JOB_ID|(LOCAL_)?WORLD_SIZE"
)
_SECRET = re.compile("KEY|PASSWORD|SECRET|TOKEN")
LARGEST_PATCH = 5_000_000  # characters; more is data that was put under version control
CONSTRAINTS = [vars(rules)[name] for name in rules.__all__]


def allow_flags(allowed: Iterable[str]) -> list[str]:
    """Return the flags that allow a command some packages of the user's."""
    return [f"--allow={package}" for package in allowed]


def train_command(directives: Iterable[str], *, allowed: Iterable[str] = ()) -> str:
    """Return the line that trains what directives make, with some packages allowed."""
    flags = [f"--config={directive}" for directive in directives]
    return shlex.join(["python", "train.py", *allow_flags(allowed), *flags])


def constraints_of(catalogue: Catalogue) -> list[Constraint]:
    """Return the constraints on a whole run, of fidgpt and of the projects of a catalogue.

    Raises:
      ConfigError: those of a project cannot be imported.
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
    try_optimizer(trainer)
    return trainer


def try_model(trainer: Trainer) -> None:
    """Pass one sequence through a model, and check that its parameters can be initialized.

    Raises:
      InitError: a component does not define how it is initialized.
      ConfigError: components of the model do not fit each other.
    """
    check_inits(trainer.model)
    with shortened(trainer.model):
        if _runs_small(trainer):
            return
        model = without_memory(trainer.model)  # which a module may change when it runs
    try:
        out = model(torch.zeros(1, trainer.seq_len, dtype=torch.int64, device="meta"))
    except Exception as error:  # whatever goes wrong in a user's model
        line = first_line(error)
        if is_lack_of_memory(error):  # such as more bytes than a machine can address
            raise ConfigError(
                f"a sequence of seq_len={trainer.seq_len} is too long for this model: choose a "
                f"shorter one.\n  {_where(model, error)}{line:.200}"
            ) from error
        raise ConfigError(
            f"the model cannot read a sequence of seq_len={trainer.seq_len}: its components do not "
            f"fit together.\n  {_where(model, error)}{line:.200}\n  {_REMEDY}"
        ) from error
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


def _runs_small(trainer: Trainer) -> bool:
    """Whether a small model passes with zeros, which is faster; if not, the meta device decides."""
    device = trainer.parallel.device
    model = with_zeros(trainer.model, num_tokens=trainer.seq_len, device=device)
    if model is None:
        return False
    try:
        # Tensors made without a device are on the wrong one, as they would be on a GPU. Without
        # gradients, nothing is compiled.
        with torch.device("meta"), torch.no_grad():
            out = model(torch.zeros(1, trainer.seq_len, dtype=torch.int64, device=device))
    except Exception:  # whatever goes wrong in a user's model
        return False
    _require_logits(trainer, out)
    return True


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


def try_optimizer(trainer: Trainer) -> None:
    """Split the parameters of a model into groups and make the optimizer, as the run will.

    Raises:
      ConfigError: there are no such groups, or the optimizer rejects its arguments, or one of them
        is infinite.
    """
    model = trainer.model
    if trainer.trainable is not None:
        model = _made("trainable", lambda one: trainable_copy(one, trainer.trainable), model)
    groups = _made("groups", trainer.groups, model)
    optimizer = _made("optimizer", trainer.optimizer, groups) if groups else None
    for group in optimizer.param_groups if optimizer is not None else ():
        for name, value in group.items():
            numbers = value if isinstance(value, list | tuple) else [value]
            is_number = (isinstance(one, int | float) and math.isinf(one) for one in numbers)
            if name != "params" and any(is_number):
                raise ConfigError(
                    f"optimizer: {name}={value!r} must be finite.",
                    place="optimizer",
                    sources=[f"optimizer.{name}"],
                )


def _made(place: str, make: Callable[[Any], Any], argument: Any) -> Any:
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


def new_run(
    cfg: fdl.Config | Resolved,
    *,
    directives: Sequence[str],
    path: str | None,
    allowed: tuple[str, ...] = (),
    flags: Sequence[str] = (),
) -> RunDirectory:
    """Return the directory of a new run, with what one needs to understand and repeat it.

    Args:
      cfg: the graph, or the graph resolved.
      directives: what made it.
      path: the directory; None for `runs/NAME-TIME`.
      allowed: packages of the user's whose callables the config may name.
      flags: what every command about the run needs, such as `--allow=lab`.

    Raises:
      ConfigError: the config cannot be written to a file and read again.
    """
    resolved = Resolved.of(cfg)
    recorded = {"fingerprint": graph.fingerprint(resolved)} | redacted_value(environment())
    changes = patch()
    texts = _texts_of(resolved, allowed, flags) | {
        "command.txt": shlex.join([sys.executable, *sys.argv]) + "\n",
        "environment.json": json.dumps(recorded, indent=1) + "\n",
        **({"changes.patch": changes} if changes else {}),
    }
    named = f"{name_of_base(directives)}-{time.strftime('%Y%m%d-%H%M%S')}"
    directory, number = Path(path) if path else Path("runs") / named, 1
    while not path and directory.exists():
        number += 1
        directory = directory.with_name(f"{named}-{number}")
    return RunDirectory(directory, texts=texts, identity=_identity(resolved))


def is_as_begun(path: Path, cfg: fdl.Config) -> bool:
    """Return whether a run's config is the one that it began with, or was changed by commands.

    Args:
      path: the directory of the run; one that has no record of its beginning is as begun.
      cfg: the config that it holds.
    """
    begun = read_json(path / "environment.json").get("fingerprint")
    if begun is None or RunDirectory(path, texts={}).has_changed:
        return True
    return begun == graph.fingerprint(cfg)


def resumed_run(
    path: Path,
    old: fdl.Config,
    cfg: fdl.Config | Resolved,
    *,
    allowed: tuple[str, ...] = (),
    flags: Sequence[str] = (),
) -> RunDirectory:
    """Return the directory of a run that resumes with `cfg` where it had `old` so far.

    The rest is as for `new_run`.

    Raises:
      ConfigErrors: something differs that may not change in a run.
      ConfigError: the new config cannot be written to a file and read again.
    """
    resolved = Resolved.of(cfg)
    changes = [
        {"path": one.change.path, "change": one.change.detail, "kind": one.permission.name.lower()}
        for one in allowed_changes(old, resolved.root)
    ]
    texts = _texts_of(resolved, allowed, flags) if changes else {}
    return RunDirectory(path, texts=texts, changes=changes, identity=_identity(resolved))


def _texts_of(resolved: Resolved, allowed: tuple[str, ...], flags: Sequence[str]) -> dict[str, str]:
    """Return the files of a config, having made sure that they can be read again."""
    text = graph.dump(resolved)
    again = graph.load(text, source="the config", allowed=allowed)
    if _unbound_fingerprint(again) != _unbound_fingerprint(resolved.root):
        lines = graph.diff_text(graph.diff(resolved, again)) or "in ways no difference shows"
        raise ConfigError(f"the config differs after saving and loading:\n  {lines}")
    files = {"config.json": text, "provenance.json": dump_provenance(resolved.root)}
    return files | ({FLAGS_FILE: "".join(f"{flag}\n" for flag in flags)} if flags else {})


def _unbound_fingerprint(root: fdl.Config) -> str:
    return BoundGraph(root, bound=False).fingerprint()


def _identity(resolved: Resolved) -> dict[str, str]:
    """Return what all processes of a run must have in common: a text for each value's path."""
    return {row.path: row.text for row in rows(resolved, defaults=True) if row.text}


def name_of_base(directives: Sequence[str]) -> str:
    """Return the name of the config that directives begin with, for the name of a directory."""
    kind, rest = split_directive(directives[0]) if directives else ("", "")
    if kind == "config_file":
        path = Path(rest).expanduser().resolve()
        return (path if path.is_dir() else path.parent).name or "config"
    if kind == "yaml":
        return Path(rest).stem or DEFAULT_CONFIG
    return rest.partition("(")[0].strip() if kind == "config" else DEFAULT_CONFIG


def environment() -> dict[str, object]:
    """Return time, place, hardware, packages, variables and the state of the code."""
    devices = map(torch.cuda.get_device_properties, range(torch.cuda.device_count()))
    # The folder of a package has its version; reading metadata takes longer.
    folders = [path for place in sys.path if place for path in Path(place).glob("*.dist-info")]
    versions = [folder.name.removesuffix(".dist-info").rpartition("-") for folder in folders]
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "working_directory": str(Path.cwd()),
        "hardware": {
            "processor": _processor(),
            "processor_count": os.cpu_count(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
            "accelerators": [{"name": d.name, "memory_bytes": d.total_memory} for d in devices],
            "cuda": torch.version.cuda,
        },
        "threads": torch.get_num_threads(),
        "variables": {
            name: value
            for name, value in sorted(os.environ.items())
            if _VARIABLE.match(name) and not _SECRET.search(name)
        },
        "packages": {"fidgpt": __version__}
        | {name: version for name, _, version in sorted(versions)},
        "git": {"commit": _git("rev-parse", "HEAD"), "changes": _git("status", "--porcelain")},
    }


def patch() -> str | None:
    """Return what turns the commit into the code that runs, for `git apply`; None if nothing does.

    Files that git does not know are not in it; `changes` of the environment names them.
    """
    text = _git("diff", "HEAD", "--binary")
    if text and len(text) > LARGEST_PATCH:
        return f"The changes are {len(text):,} characters long and were omitted.\n"
    return f"{text}\n" if text else None


def _processor() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    found = re.search(r"^model name\s*: (.*)", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor()


def _git(*command: str) -> str | None:
    """Return what git prints about the checkout that this code runs from; None if it is none."""
    whole = ["git", "-C", str(Path(__file__).resolve().parent), *command]
    try:
        done = subprocess.run(
            whole, capture_output=True, text=True, errors="replace", timeout=10, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip("\n") if done.returncode == 0 else None
