"""A Levanter file as a config."""

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from fidgpt.graph import ConfigError
from fidgpt.graph.errors import at, raise_all
from fidgpt.graph.yaml import read_yaml
from fidgpt.interop.directives_from import bring_about
from fidgpt.interop.levanter.model import map_model
from fidgpt.interop.levanter.section import Plan, Section
from fidgpt.interop.levanter.training import map_optimizer, map_trainer

_PLAIN_PATH = re.compile(r"(?![A-Za-z][A-Za-z0-9+.-]*://)[^{}*?\[\]]+")
_OWN = "own"  # what `use_mixture` calls the text that a config has already
_USUAL: dict[str, Any] = {
    "shuffle": True,
    "cache_dir": None,
    "enforce_eos": True,
    "stream": True,
    "stop_strategy": "restart",
    "tags": None,
}


class _Text(NamedTuple):
    """A text that is on this machine or on the hub, and the field that it is in."""

    path: str
    field: str
    is_on_hub: bool
    name: str | None


def map_data(section: Section) -> None:
    """Adds to the plan the texts that are said in a way that fidgpt has too.

    Such is a file or folder on this machine or, where it is no part of a mixture but its first, a
    dataset of the hub.
    """
    if "configs" in section.left:
        _map_mixture(section)
    elif text := _text(section):
        _use(section, text)
    section.neutral(_USUAL)
    section.close()


def _map_mixture(section: Section) -> None:
    configs, weights = section.left["configs"], section.left.get("train_weights")
    stages = _stages(weights)
    names = [name for name in stages[0] if any(one.get(name) for one in stages.values())]
    if not isinstance(configs, dict) or not names or not set(names) <= configs.keys():
        return
    parts = {name: section.inside(f"configs.{name}", configs[name]) for name in names}
    texts = {name: _text(part) for name, part in parts.items()}
    found = [text for text in texts.values() if text is not None]
    is_one_field = len({text.field for text in found}) == 1
    if len(found) < len(names) or any(text.is_on_hub for text in found[1:]) or not is_one_field:
        reason = "the texts of a mixture have to be files on this machine"
        for key in ("configs", "train_weights"):
            section.unmap(key, section.left.pop(key), reason)
        return
    del section.left["configs"], section.left["train_weights"]
    _use(section, found[0])
    ours = dict(zip(names, [_OWN, *(_unlike_own(name) for name in names[1:])], strict=True))
    shares = {
        begin: {ours[name]: float(one.get(name, 0.0)) for name in names}
        for begin, one in stages.items()
    }
    told = {
        "texts": {ours[name]: text.path for name, text in zip(names[1:], found[1:], strict=True)},
        "weights": shares.pop(0),
        "stages": shares,
        "text_field": found[0].field,
    }
    if len(names) > 1:
        arguments = ", ".join(f"{key}={value!r}" for key, value in told.items() if value)
        section.plan.changes.append(f"fiddler:use_mixture({arguments})")
    for part in parts.values():
        section.neutral(_USUAL)
        part.neutral(_USUAL)
        part.close()
    for name in configs.keys() - parts.keys():
        section.unmap(f"configs.{name}", configs[name], "it has no share in what is learned")


def _unlike_own(name: str) -> str:
    return f"{name}_" if name == _OWN else name


def _stages(weights: Any) -> dict[int, dict[str, float]]:
    """The shares by the step from which on they hold; nothing in them where they make no sense."""
    pairs = [[0, weights]] if isinstance(weights, dict) else weights
    nothing: dict[int, dict[str, float]] = {0: {}}
    if not isinstance(pairs, list) or not pairs or not all(map(_is_stage, pairs)):
        return nothing
    stages = {begin: {str(name): share for name, share in one.items()} for begin, one in pairs}
    names = {name: 0.0 for one in stages.values() for name in one}
    return {begin: names | one for begin, one in sorted(stages.items())} if 0 in stages else nothing


def _is_stage(pair: Any) -> bool:
    is_pair = isinstance(pair, list) and len(pair) == 2 and type(pair[0]) is int
    if not is_pair or pair[0] < 0 or not isinstance(pair[1], dict):
        return False
    return all(type(share) in (int, float) and share >= 0 for share in pair[1].values())


def _text(section: Section) -> _Text | None:
    """The text of a source, taken out of it; None where there is none that can be said here."""
    urls, hub = section.left.get("train_urls"), section.left.get("id")
    url = urls[0] if isinstance(urls, list) and len(urls) == 1 else None
    here = url if isinstance(url, str) and _PLAIN_PATH.fullmatch(url) else None
    path = here or (hub if isinstance(hub, str) and urls is None else None)
    form = section.left.get("format")
    is_text = not isinstance(form, dict) or form.get("type", "text") == "text"
    if path is None or not is_text:
        return None
    for key in ("train_urls", "id"):
        section.left.pop(key, None)
    name = section.take("name", None, str) if here is None else None
    return _Text(path, _field(section), here is None, name)


def _field(section: Section) -> str:
    if not section.takes("format", dict):
        return section.take("text_key", "text", str)
    form = section.section("format")
    form.neutral({"type": "text"})
    field = form.take("text_key", "text", str)
    form.close()
    return field


def _use(section: Section, text: _Text) -> None:
    said = f"path={text.path!r}" + (f", name={text.name!r}" if text.name else "")
    field = "" if text.field == "text" else f", text_field={text.field!r}"
    fiddler = "use_hub_text" if text.is_on_hub else "use_text"
    section.plan.changes.append(f"fiddler:{fiddler}({said}{field})")


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
    with at("the Levanter file"):
        document = read_yaml(text, schema="omegaconf", foreign=("!include",))
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
