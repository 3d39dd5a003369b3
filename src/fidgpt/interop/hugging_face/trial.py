"""A checkpoint of the Hugging Face hub, described and tried."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from fidgpt.configs.hub import Family
from fidgpt.graph import ConfigError, bind, build
from fidgpt.interop.hugging_face.files import CONFIG, TensorFiles, has_weights, layout_of, read_json
from fidgpt.interop.hugging_face.hub import from_hf, load_hf, member_in, member_of
from fidgpt.interop.hugging_face.keys import reason_of, unknown_keys
from fidgpt.interop.hugging_face.settings import (
    families,
    family_modules,
    missing_component,
    read_config,
    text_keys,
)
from fidgpt.model import materialize

_TOKENS = 16


def describe_hf(directory: str) -> Iterator[str]:
    """Yield lines about a checkpoint: family, settings by key, other keys, tensors, and a trial.

    The trial computes the logits of 16 tokens in float32, with the weights if there are any.

    Raises:
      ConfigError: fidgpt cannot compute the model, for reasons that are all listed.
    """
    path = Path(directory).expanduser()
    if read_json(path / CONFIG).get("model_type") not in families():
        yield from _propose(path)
        return
    member = member_in(path)
    family, config = member.family, read_config(path)
    make = getattr(family.config, "func", family.config)  # of a partial
    yield f"{family.model_type}: {family.architecture}, fidgpt.configs {make.__name__}"
    for name, key in family.settings.items():
        if name in member.settings:
            yield f"  {key} -> {name} = {_shown(member.settings[name])}"
    for key in sorted(config.keys() - {*family.settings.values()}):
        yield f"  {key}: {reason_of(family, key)}"
    cfg = from_hf(directory)
    with torch.device("meta"):
        model = build(bind(cfg).model)
    layout = layout_of(family, model, member.settings)
    yield from (
        f"  {name} {list(layout.shape(name))} -> {layout.paths[name]}" for name in layout.pieces
    )
    materialize(model, device=torch.device("cpu"), seed=0)
    if not has_weights(path):
        yield "no weights are there; a model of new ones was tried"
    else:
        load_hf(model.eval(), path)
        yield f"all {len(TensorFiles(path).shapes)} tensors fit"
    tokens = torch.arange(_TOKENS).unsqueeze(0) % cfg.vocab_size
    with torch.no_grad():
        logits = model.eval()(tokens)
    yield f"logits of {_TOKENS} tokens: {'finite' if logits.isfinite().all() else 'not finite'}"
    if has_weights(path):
        del model
        yield _compared(path, tokens, logits)


def _compared(path: Path, tokens: Tensor, logits: Tensor) -> str:
    """Return how far logits are from those of transformers."""
    try:
        from transformers import AutoModelForCausalLM

        theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        with torch.no_grad():
            apart = (theirs(input_ids=tokens, use_cache=False).logits - logits).abs().max()
    except Exception as error:  # whatever code of a third party raises
        return f"not compared with transformers: {type(error).__name__}: {error!s:.200}"
    largest = logits.abs().max()
    return f"those of transformers differ by at most {apart:.1e}; the largest is {largest:.1e}"


def _propose(path: Path) -> Iterator[str]:
    """Yield a table for a checkpoint of no known family: the nearest family's, and its misfits.

    A family that refuses the keys is as far as if no tensor had its names.
    """
    content = read_json(path / CONFIG)
    kind, (architecture, *_) = content.get("model_type"), content.get("architectures") or ["?"]
    nearest, wrong = min(
        ((family, _misfits(path, family)) for family in families().values()),
        key=lambda tried: len(tried[1]),
    )
    module, name = next(
        (module, name)
        for module, members in family_modules()
        for name, member in members.items()
        if member is nearest
    )
    yield f"# {kind} is no family of fidgpt. The nearest table, with {len({*wrong})} misfits:"
    yield f"from {module} import {name}"
    yield f"HUB = {name}.near({kind!r}, architecture={architecture!r})"
    if missing := missing_component(str(kind)):
        yield f"# fidgpt has no {missing}"
    yield from (f"# {line}" for line in dict.fromkeys(wrong))
    if not wrong:
        yield "# All keys and tensors fit. Offer it as in docs/models.md, then compare logits."
    else:
        yield "# docs/models.md shows how to change it, and docs/components.md new components."


def _misfits(path: Path, family: Family) -> list[str]:
    """Return the keys and tensors of a checkpoint that a family does not have, or has besides."""
    content = text_keys(read_json(path / CONFIG))
    shapes = TensorFiles(path).shapes if has_weights(path) else {}
    unknown = [f"key {key} is unknown" for key in unknown_keys(family, content)]
    try:
        member = member_of(family, read_config(path, family))
        layout = layout_of(family, member.built(), member.settings)
    except ConfigError as error:
        kinds = {re.sub(r"\.\d+\.", ".*.", name) for name in shapes}
        return [*unknown, *str(error).splitlines(), *["(tensors were not compared)"] * len(kinds)]
    there = {name: shape for name, shape in shapes.items() if not layout.is_ignored(name)}
    here = {name: layout.shape(name) for name in layout.pieces} if there else {}
    names = [name for name in {**there, **here} if name not in layout.tied]
    tensors = {
        re.sub(r"\.\d+\.", ".*.", f"{name}: {there.get(name)} there, {here.get(name)} here")
        for name in names
        if there.get(name) != here.get(name)
    }
    return [*unknown, *sorted(tensors)]


def _shown(value: object) -> str:
    try:
        return json.dumps(value)
    except TypeError:
        return repr(value)
