"""The family that computes what a model computes."""

from typing import NamedTuple

from fidgpt.configs.hub import Family
from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.families import FAMILIES
from fidgpt.interop.hugging_face.member import member_of
from fidgpt.interop.hugging_face.readings import read_settings
from fidgpt.interop.hugging_face.said import Said
from fidgpt.interop.hugging_face.settings import Settings, said_of, settings_of
from fidgpt.interop.hugging_face.structure import differences
from fidgpt.model import LanguageModel

_LISTED = 6


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
    rest = len(nearest.wrong) - _LISTED
    lines = nearest.wrong[:_LISTED] + ([f"and {rest} more"] if rest > 0 else [])
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
