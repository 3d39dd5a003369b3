"""Weights of the hub, loaded."""

import fnmatch
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import fiddle as fdl
import torch

from fidgpt.configs.hub import Family
from fidgpt.data import TokenizerFile
from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.config import differences, read_settings
from fidgpt.interop.hugging_face.families import FAMILIES, family_of, known_name, member_of
from fidgpt.interop.hugging_face.files import CONFIG, TensorFiles, has_weights
from fidgpt.interop.hugging_face.settings import (
    Said,
    Settings,
    config_of,
    read_said,
    said_of,
    settings_of,
)
from fidgpt.interop.hugging_face.tensors import Layout, layout_of
from fidgpt.model import LanguageModel
from fidgpt.train import Trainer

_LISTED = 12  # tensors in a message
_ALLOWED = 4  # paths that one would allow
_FORMATS = ("BF16", "F16", "F32", "F64")


@torch.no_grad()
def load_hf(model: LanguageModel, directory: str | Path, *, may_differ: Sequence[str] = ()) -> None:
    """Copies the weights of a Hugging Face directory into a model that computes the same.

    Reads model.safetensors, or the shards that its index names. The model is left as it was unless
    every tensor fits. Low-rank adapters stay as they are.

    Args:
      model: with memory, in any number format.
      directory: holds config.json and the weights.
      may_differ: paths in the model, with `*` for any letters, where it may be another than
        config.json says, such as `blocks.*.attention.rope.scaling`; parameters there that the
        files do not have stay as they are.

    Raises:
      ConfigError: the directory cannot be read or is of a family that we do not know; the model
        computes something else or is on the meta device; or tensors are missing, unknown, of
        another shape or quantised, all of which are listed.
    """
    directory = Path(directory).expanduser()
    said = read_said(directory)
    family, settings = _understood(said, directory / CONFIG)
    _require_same(model, family, settings, may_differ, directory / CONFIG)
    require_memory(model)
    layout, files = layout_of(family, model, settings), TensorFiles(directory)
    ours_of = {name: known_name(name, layout.knows) for name in files.shapes}
    theirs_of = {ours: theirs for theirs, ours in ours_of.items() if not layout.is_spare(ours)}
    _require(
        f"the tensors of {directory} do not fit the model",
        [
            *_misfits(layout, theirs_of, files, may_differ),
            *_coded(theirs_of, files),
            *_torn(layout, theirs_of, files),
        ],
    )
    for theirs, tensor in files.each(theirs_of.values()):
        for piece in layout.pieces.get(ours_of[theirs], ()):
            piece.ours.copy_(piece.theirs(tensor))


def require_memory(model: LanguageModel) -> None:
    """Raises ConfigError where a parameter is on the meta device."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ConfigError("the model has no memory yet: materialize it first.")


def _understood(said: Said, path: Path) -> tuple[Family, Settings]:
    try:
        family = family_of(said["model_type"])
        return family, settings_of(family, said)
    except ConfigError as error:
        raise ConfigError(f"{path} cannot be used:\n  {error}") from error


def _require_same(
    model: LanguageModel, family: Family, settings: Settings, may_differ: Sequence[str], path: Path
) -> None:
    """Also where no shape would tell that the model computes something else."""
    expected = member_of(family, settings)
    wrong = [one for one in differences(model, expected) if not _is_among(one.path, may_differ)]
    told = [] if may_differ or not wrong else _in_their_words(model, expected, family)
    told = told or [f"{one.path} is {one.theirs}, in the model {one.ours}" for one in wrong]
    paths = [one.path for one in wrong]
    remedy = f"Where that is meant, allow it: may_differ={paths}" if len(paths) <= _ALLOWED else ""
    _require(f"{path} is of another model", told, remedy)


def _in_their_words(model: LanguageModel, expected: LanguageModel, family: Family) -> list[str]:
    """The same by the keys of config.json, where the model can be described by these."""
    try:
        ours, theirs = (
            said_of(family, read_settings(family, one, seq_len=None)) for one in (model, expected)
        )
    except ConfigError:
        return []
    keys = [key for key in ours if ours[key] != theirs[key]]
    return [f"{key} is {theirs[key]}, in the model {ours[key]}" for key in keys]


def _misfits(
    layout: Layout, theirs_of: dict[str, str], files: TensorFiles, may_differ: Sequence[str]
) -> list[str]:
    """A line for each tensor that is missing, unknown or of another shape."""
    wanted = {name: layout.shape(name) for name in layout.pieces}
    found = {name: files.shapes[theirs] for name, theirs in theirs_of.items()}
    free = {name for name, path in layout.paths.items() if _is_among(path, may_differ)}
    return [
        f"{name}: {_text(found.get(name))} there, {_text(wanted.get(name))} in the model"
        for name in sorted(wanted.keys() | found.keys())
        if wanted.get(name) != found.get(name)
        and not (name in layout.tied and name in found)
        and not (name in free and name not in found)
    ]


def _coded(theirs_of: dict[str, str], files: TensorFiles) -> list[str]:
    """A line for each tensor whose numbers are a code for weights, as those of quantised models."""
    return [
        f"{name}: numbers of type {format} there, and weights are {', '.join(_FORMATS)}"
        for name, theirs in sorted(theirs_of.items())
        if (format := files.formats[theirs]) not in _FORMATS
    ]


def _torn(layout: Layout, theirs_of: dict[str, str], files: TensorFiles) -> list[str]:
    """A line for each table that is saved twice, and differs from the one that it is tied to."""
    twice = [
        (theirs_of[name], theirs_of[first])
        for name, first in layout.tied.items()
        if name in theirs_of and first in theirs_of
    ]
    return [
        f"{name} differs from {first}, although {CONFIG} ties them"
        for name, first in twice
        if not torch.equal(files[name], files[first])
    ]


def _is_among(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _text(shape: tuple[int, ...] | None) -> str:
    return "absent" if shape is None else str(list(shape))


def _require(message: str, wrong: list[str], remedy: str = "") -> None:
    if wrong:
        rest = len(wrong) - _LISTED
        listed = wrong[:_LISTED] + ([f"and {rest} more"] if rest > 0 else [])
        raise ConfigError("\n  ".join([f"{message}:", *listed, *([remedy] if remedy else [])]))


_TOKENIZER = "tokenizer.json"


def from_hf(directory: str) -> fdl.Config[Trainer]:
    """The model of a Hugging Face directory, with its tokenizer and weights where it has them.

    What config.json says of training, such as dropout, is not taken over. Where there are weights
    and no tokenizer.json, the config can be built, and is to be given a tokenizer before it runs.

    Raises:
      ConfigError: the directory holds no config.json, or not that of a model that we can compute;
        all that is in the way is listed; or it has weights that are no safetensors, or that no
        index names.
    """
    path = Path(directory).expanduser()
    said = read_said(path)
    try:
        family = family_of(said["model_type"])
        cfg = config_of(family, settings_of(family, said))
    except ConfigError as error:
        raise ConfigError(f"{path / CONFIG} cannot be used:\n  {error}") from error
    path = path.resolve()
    is_trained = has_weights(path)
    # Weights know the numbers of one tokenizer: where it is missing, a run has to say so.
    if is_trained or (path / _TOKENIZER).exists():
        cfg.data.corpus.tokenizer = fdl.Config(TokenizerFile, path=str(path / _TOKENIZER))
    if is_trained:
        cfg.weights = fdl.Partial(load_hf, directory=str(path))
    return cfg


_MOST_DIFFERENCES = 6


class Fitting(NamedTuple):
    """A family, its settings by our names, and what config.json says of them."""

    family: Family
    settings: Settings
    said: Said


class _Misfit(NamedTuple):
    family: Family
    wrong: list[str]
    is_far: bool  # not even described by the family's settings


def fitting_family(model: LanguageModel, *, seq_len: int) -> Fitting:
    """The first family of which a member, made of what config.json would say, is the same model.

    So that nothing can be lost on the way: what config.json cannot say shows as a difference.

    Raises:
      ConfigError: there is none; the nearest one is named, and in what it differs.
    """
    misfits: list[_Misfit] = []
    for family in FAMILIES:
        found = _attempt(family, model, seq_len=seq_len)
        if isinstance(found, Fitting):
            return found
        misfits.append(found)
    nearest = min(misfits, key=lambda one: (one.is_far, len(one.wrong)))
    rest = len(nearest.wrong) - _MOST_DIFFERENCES
    lines = nearest.wrong[:_MOST_DIFFERENCES] + ([f"and {rest} more"] if rest > 0 else [])
    raise ConfigError(
        "no family of the hub that fidgpt knows computes what this model computes. Nearest is "
        f"{nearest.family.architecture}:\n  " + "\n  ".join(lines)
    )


def _attempt(family: Family, model: LanguageModel, *, seq_len: int) -> Fitting | _Misfit:
    try:
        found = read_settings(family, model, seq_len=seq_len)
    except ConfigError as error:
        return _Misfit(family, [str(error)], is_far=True)
    try:
        said = said_of(family, found)
    except ConfigError as error:
        return _Misfit(family, [str(error)], is_far=False)
    try:
        settings = settings_of(family, said)
        expected = member_of(family, settings)
    except ConfigError as error:
        return _Misfit(family, str(error).splitlines(), is_far=True)
    wrong = differences(model, expected)
    lines = [f"{one.path} is {one.ours}, there {one.theirs}" for one in wrong]
    lines += _refused(family, settings)
    return _Misfit(family, lines, is_far=False) if lines else Fitting(family, settings, said)


def _refused(family: Family, settings: Settings) -> list[str]:
    """What transformers' class of the family would not take, although the numbers work."""
    width, heads = settings["hidden_dim"], settings["num_heads"]
    if not family.whole_heads or width % heads == 0:
        return []
    return [f"{width=} is no whole number of {heads=}, as transformers wants it there"]
