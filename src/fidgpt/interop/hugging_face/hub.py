"""Models of the Hugging Face hub, read and written."""

import contextlib
import fnmatch
import functools
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from types import FunctionType
from typing import Any, NamedTuple

import fiddle as fdl
import torch
from torch import Tensor, nn

from fidgpt import model as library
from fidgpt.configs.hub import Family
from fidgpt.data import ChatTemplate, Tokenizer, TokenizerFile
from fidgpt.graph import ConfigError, bind, build
from fidgpt.interop.hugging_face import files
from fidgpt.interop.hugging_face.files import CONFIG, Layout, TensorFiles, layout_of, tensors_of
from fidgpt.interop.hugging_face.keys import unknown_keys
from fidgpt.interop.hugging_face.settings import (
    FAMILIES,
    HubConfig,
    Settings,
    UnknownScaling,
    config_keys,
    families,
    family_of,
    published_keys,
    read_config,
    read_settings,
    settings_of,
    text_keys,
)
from fidgpt.interop.hugging_face.tokenizer_files import (
    FILES,
    GENERATION,
    TOKENIZER,
    copies_files,
    write_tokenizer,
)
from fidgpt.model import LanguageModel
from fidgpt.model.linear import Linear
from fidgpt.model.moe import SelectionBias
from fidgpt.model.quantized import whole_weights
from fidgpt.train import Trainer
from fidgpt.train.run_directory import print_stderr

_MAX_LISTED = 12  # lines in a message
_MAX_ALLOWED = 4  # paths that a message suggests for may_differ
_MAX_DIFFERENCES = 6  # from the nearest family
_FURTHER = {"num_nextn_predict_layers", "num_mtp_layers", "num_mtp_modules"}  # not written
_OF_FILES = ("quantization_config", "torch_dtype", "auto_map", "transformers_version")
_FORMATS = ("BF16", "F16", "F32", "F64")
_BARE_PREFIXES = ("transformer.", "model.")  # missing in files of models without a head
_PREFIXES = (
    ("model.language_model.", "model."),  # with images
    ("language_model.", ""),
    ("model.", "backbone."),  # Nemotron in transformers 5
)
_RENAMED = (  # by transformers 5, as it saves models by `save_original_format=False`
    (".mlp.", ".block_sparse_moe."),  # Mixtral's experts
    (".mlp.router.", ".block_sparse_moe.gate."),  # Phi-3.5-MoE
    (".experts.gate_up_proj", ".input_linear.weight"),  # Granite
    (".experts.down_proj", ".output_linear.weight"),
    (".router.weight", ".router.layer.weight"),
    (".experts.gate_up_proj", ".experts.fc1.weight"),  # Aria
    (".experts.down_proj", ".experts.fc2.weight"),
    (".gate.e_score_correction_bias", ".e_score_correction_bias"),  # EXAONE
    (".gate.moe_statics.", ".moe_statics."),  # ERNIE
    (".sinks", ".softmax_offset"),
    (".feedforward_layer_norm.", ".post_attention_layernorm."),  # of OLMo hybrid's attention there
    (".gate.e_score_correction_bias", ".experts.e_score_correction_bias"),  # Laguna
    (".shared_experts.", ".shared_expert."),
    (".mlp.gate.", ".mlp.router.gate."),  # HunYuan 3
    (".mlp.e_score_correction_bias", ".mlp.expert_bias"),
    (".shared_experts.", ".shared_mlp."),
    (".mlp.gate.e_score_correction_bias", ".moe.router.expert_bias"),  # Kolibri
    (".post_self_attn_layernorm.", ".post_attn_norm."),
    (".post_mlp_layernorm.", ".post_ffn_norm."),
    (".mlp.post_mlp_layernorm.", ".post_mlp_layernorm."),  # A.X
    (".forget_gate.", "."),  # Kimi Linear
)


class Member(NamedTuple):
    """A model as a member of a family.

    Attributes:
      family: its names of settings and tensors.
      settings: arguments of the family's config.
      config: the config that they make.
    """

    family: Family
    settings: Settings
    config: fdl.Config[Trainer]

    def built(self) -> LanguageModel:
        """Return the model, on the meta device."""
        with torch.device("meta"):
            return build(bind(self.config).model)


def member_of(family: Family, config: HubConfig) -> Member:
    """Return the member of a family that a config.json describes.

    Raises:
      ConfigError: the family has no such member.
    """
    settings = settings_of(family, config)
    try:
        return Member(family, settings, family.config(**settings))
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{family.model_type}: {error}") from error
    except (ZeroDivisionError, StopIteration) as error:
        raise ConfigError(f"{family.model_type}: a number is 0 or below: {error}") from error


def member_in(directory: Path) -> Member:
    """Return the member of a family that a directory holds, with a warning for unknown keys.

    Raises:
      ConfigError: there is no such family or member.
    """
    config = read_config(directory)
    try:
        family = family_of(config["model_type"])
        member = member_of(family, config)
    except ConfigError as error:
        raise ConfigError(f"{directory / CONFIG} cannot be used:\n  {error}") from error
    if unknown := unknown_keys(family, config):
        _warn_once(
            f"{directory / CONFIG} has {', '.join(sorted(unknown))}, which fidgpt's "
            f"{family.model_type} does not know: if they change numbers, those here differ."
        )
    return member


@functools.cache
def _warn_once(text: str) -> None:
    print_stderr(f"warning: {text}")


def from_hf(directory: str) -> fdl.Config[Trainer]:
    """The model of a Hugging Face directory, with its tokenizer and weights where it has them.

    What config.json has about training, such as dropout, is ignored. Where there are weights and
    no tokenizer.json, the config can be built, and needs a tokenizer before it runs.

    Raises:
      ConfigError: the directory holds no config.json, or describes a model that fidgpt cannot
        compute, with all reasons listed; or it has weights that are not safetensors, or
        that no index names.
    """
    path = Path(directory).expanduser()
    cfg = member_in(path).config
    path = path.resolve()
    is_trained = files.has_weights(path)
    # Weights fit the numbers of one tokenizer: where it is missing, a run has to set another.
    if is_trained or (path / TOKENIZER).exists():
        cfg.data.corpus.tokenizer = fdl.Config(TokenizerFile, path=str(path / TOKENIZER))
    if is_trained:
        cfg.weights = fdl.Partial(load_hf, directory=str(path))
    return cfg


@torch.no_grad()
def load_hf(model: LanguageModel, directory: str | Path, *, may_differ: Sequence[str] = ()) -> None:
    """Copy the weights of a Hugging Face directory into a model that computes the same.

    Reads model.safetensors, or the shards that its index names. The model is left as it was unless
    every tensor fits. Low-rank adapters stay as they are.

    Args:
      model: with memory, in any number format.
      directory: holds config.json and the weights.
      may_differ: paths in the model, with `*` for any letters, where it may differ from
        config.json, such as `blocks.*.attention.rope.scaling`; parameters there that the files do
        not have stay as they are.

    Raises:
      ConfigError: the directory cannot be read or is of an unknown family; the model computes
        something else or is on the meta device; or tensors are missing, unknown, of another shape
        or quantized, all of which are listed.
    """
    directory = Path(directory).expanduser()
    member = member_in(directory)
    with whole_weights(model, to_fill=True):
        _require_same(model, member, may_differ, directory / CONFIG)
        _require_memory(model)
        layout, tensors = layout_of(member.family, model, member.settings), TensorFiles(directory)
        tensors.split_fused(lambda name: layout.knows(_known_name(name, layout.knows)))
        ours_of = {name: _known_name(name, layout.knows) for name in tensors.shapes}
        theirs_of = {
            ours: theirs for theirs, ours in ours_of.items() if not layout.is_ignored(ours)
        }
        for name, first in layout.tied.items():  # either of the two may be saved alone
            if name in theirs_of and first not in theirs_of:
                theirs_of[first] = theirs_of.pop(name)
        _require_fit(layout, theirs_of, tensors, may_differ, directory)
        ours_of = {theirs: ours for ours, theirs in theirs_of.items()}
        for theirs, tensor in tensors.each(theirs_of.values()):
            for piece in layout.pieces.get(ours_of[theirs], ()):
                piece.ours.copy_(piece.theirs(tensor))


def _require_present(directory: str | Path, **others: object) -> None:
    """Raise ConfigError if the weights of a directory cannot be read."""
    del others
    TensorFiles(Path(directory).expanduser())


vars(load_hf)["require_present"] = _require_present


def _require_memory(model: LanguageModel) -> None:
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ConfigError("the model has no memory yet: materialize it first.")


def _known_name(name: str, is_known: Callable[[str], bool]) -> str:
    """Return the known name of a tensor saved from another form of a model, such as a bare one.

    A name that is known, or not known in any form, stays as it is.
    """
    candidates = [prefix + name for prefix in _BARE_PREFIXES]
    candidates += [name.replace(old, new, 1) for old, new in _PREFIXES if name.startswith(old)]
    known = [name, *candidates]
    candidates += [known_name.replace(old, new, 1) for old, new in _RENAMED for known_name in known]
    return next((candidate for candidate in [name, *candidates] if is_known(candidate)), name)


def _require_same(
    model: LanguageModel, member: Member, may_differ: Sequence[str], path: Path
) -> None:
    """Reject a model that computes something else, even where the shapes agree."""
    differing = differences(model, member.built())
    wrong = [difference for difference in differing if not _matches(difference.path, may_differ)]
    lines = [f"{d.path} is {d.theirs}, in the model {d.ours}" for d in wrong]
    paths = [difference.path for difference in wrong]
    remedy = f"To allow it: may_differ={paths}" if len(paths) <= _MAX_ALLOWED else ""
    _require(f"{path} is of another model", lines, remedy)


def _require_fit(
    layout: Layout,
    theirs_of: dict[str, str],
    tensors: TensorFiles,
    may_differ: Sequence[str],
    directory: Path,
) -> None:
    """Reject tensors that are missing, unknown, of another shape or coded, or that are torn."""
    wanted = {name: layout.shape(name) for name in layout.pieces}
    shapes = {name: tensors.shapes[theirs] for name, theirs in theirs_of.items()}
    wrong: list[str] = []
    for name in sorted(wanted.keys() | shapes.keys()):
        is_tied = name in layout.tied and name in shapes
        is_free = name not in shapes and _matches(layout.paths[name], may_differ)
        if wanted.get(name) != shapes.get(name) and not is_tied and not is_free:
            there, ours = (
                "absent" if shape is None else list(shape)
                for shape in (shapes.get(name), wanted.get(name))
            )
            wrong.append(f"{name}: {there} there, {ours} in the model")
    for name, theirs in sorted(theirs_of.items()):
        if (form := tensors.formats[theirs]) not in _FORMATS:
            wrong.append(f"{name}: numbers of type {form} there, not {', '.join(_FORMATS)}")
    for name, first in layout.tied.items():  # both may be saved
        both = [theirs_of[key] for key in (name, first) if key in theirs_of]
        if len(both) == 2 and not torch.equal(*map(tensors.__getitem__, both)):
            wrong.append(f"{both[0]} differs from {both[1]}, although {CONFIG} ties them")
    _require(f"the tensors of {directory} do not fit the model", wrong)


def _matches(path: str, patterns: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _require(message: str, wrong: list[str], remedy: str = "", most: int = _MAX_LISTED) -> None:
    if wrong:
        more = [f"and {len(wrong) - most} more"] if len(wrong) > most else []
        lines = [f"{message}:", *wrong[:most], *more, *([remedy] if remedy else [])]
        raise ConfigError("\n  ".join(lines))


@torch.no_grad()
def save_hf(
    model: LanguageModel,
    directory: str | Path,
    *,
    seq_len: int,
    tokenizer: Tokenizer | None = None,
    max_shard_size: int = 5_000_000_000,
    model_type: str | None = None,
    source: str | Path | None = None,
) -> str:
    """Write config.json, the weights and the tokenizer as transformers would.

    The family is found by what the model computes, and low-rank adapters are added to their
    weights. Needs memory for one shard more, and for copies of what has adapters. Returns the name
    of transformers' class.

    Args:
      model: with memory.
      directory: created if missing.
      seq_len: the longest sequence that the model is for, in tokens.
      tokenizer: its files are written too, its end of text is named, and what the table has rows
        for beyond its tokens is not drawn by `generate`.
      max_shard_size: bytes; of one shard there is one file, of more an index too.
      model_type: of the family, where several compute the same, such as llama and phi3; defaults
        to the model_type of `source` if it is one of them, or to the first one.
      source: directory of the hub from which the model came. Its longest sequence, and if the
        tokenizer is the same, the files of that and of generation stay as they are.

    Raises:
      ConfigError: the model is on the meta device, or no known family of the hub computes what it
        does: then the nearest one and the differences are named. Or the directory has files of
        these names that no export has written, such as a run's config; they stay as they are.
    """
    _require_memory(model)
    directory = Path(directory).expanduser()
    source = None if source is None else Path(source).expanduser()
    origin: HubConfig = {} if source is None else read_config(source)
    seq_len = max(seq_len, origin.get("max_position_embeddings") or 0)
    with whole_weights(model):
        member, keys = _fitting(model, seq_len, model_type, origin.get("model_type"))
        family = member.family
        layout = layout_of(family, model, member.settings, merge=True)
        directory.mkdir(parents=True, exist_ok=True)
        others = [CONFIG, *(() if tokenizer is None else FILES)]
        files.write_weights(layout, directory, max_shard_size=max_shard_size, others=others)
    names = ("bos_token_id", "eos_token_id", "pad_token_id")  # a class may have others than null
    tokens = {key: origin.get(key) for key in names if source is None or key in origin}
    is_copied = (
        tokenizer is not None and source is not None and copies_files(tokenizer, source, directory)
    )
    if tokenizer is not None and not is_copied:
        tokens = write_tokenizer(tokenizer, directory, seq_len=seq_len, family=family)
        # Rows of the table without a token are trained to be unlikely, but not to be impossible.
        unused = range(tokenizer.vocab_size, member.settings["vocab_size"])
        generation: dict[str, Any] = tokens | {"suppress_tokens": [*unused] or None}
        if tokenizer.chat is not None:
            others = {*ChatTemplate(tokenizer).ends_of_turn()} - {tokenizer.end_of_text}
            if others:
                generation["eos_token_id"] = [tokenizer.end_of_text, *others]
        files.write_json(directory / GENERATION, generation)
    tokens = {key: token for key, token in tokens.items() if key not in family.fixed}
    about = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "dtype": str(next(model.parameters()).dtype).removeprefix("torch."),
        **tokens,
    }
    named = {key: token for key, token in tokens.items() if token is not None}
    kept = None if source is None else _kept_keys(source, member)
    content = about | published_keys(family, keys) if kept is None else kept | about
    content |= named
    if family.holder:
        kinds = {"architectures": [family.architecture], "model_type": family.holder}
        content = kinds | {"text_config": content}
    files.write_json(directory / CONFIG, content)
    return family.architecture


def _kept_keys(source: Path, member: Member) -> HubConfig | None:
    """Return the config.json of a source; None if it describes another model than the member.

    It may say the same in other words, whose rounding differs, and has keys that concern training.
    """
    content, family = text_keys(files.read_json(source / CONFIG)), member.family
    if content.get("model_type") != family.model_type:
        return None
    theirs = member_of(family, read_config(source))
    lengths = [described.settings.get("seq_len") for described in (theirs, member)]
    if lengths[0] != lengths[1] or differences(member.built(), theirs.built()):
        return None
    kept = {key: value for key, value in content.items() if key not in _OF_FILES}
    return kept | dict.fromkeys(kept.keys() & _FURTHER, 0)


def _fitting(
    model: LanguageModel, seq_len: int, model_type: str | None, first: str | None
) -> tuple[Member, HubConfig]:
    """Return the member of `model_type`; without that, of the family to try first, or of any."""
    if model_type is None and first is not None:
        with contextlib.suppress(ConfigError):
            return fitting_member(model, seq_len=seq_len, model_type=first)
    return fitting_member(model, seq_len=seq_len, model_type=model_type, meant=first)


def fitting_member(
    model: LanguageModel, *, seq_len: int, model_type: str | None = None, meant: str | None = None
) -> tuple[Member, HubConfig]:
    """Return the first family whose config.json builds the same model.

    The member is built from the keys, so that what these cannot hold shows as a difference. With a
    model_type, no other family is tried.

    Raises:
      ConfigError: there is none; the nearest one is named, and in what it differs, and why keys of
        the family `meant`, and of those of projects, cannot describe it. Or the model_type is
        unknown.
    """
    tried = families().values() if model_type is None else [family_of(model_type)]
    mismatches: list[tuple[bool, int, int, Family, list[str]]] = []
    for family in tried:
        try:
            settings = read_settings(family, model, seq_len=seq_len)
            keys = config_keys(family, settings)
            member = member_of(family, keys)
            built = member.built()
        except ConfigError as error:  # the keys of the family cannot describe it
            lines = str(error).splitlines()
            is_other = not isinstance(error, UnknownScaling)
            mismatches.append((is_other, 0, len(lines), family, lines))
            continue
        different = differences(model, built)
        wrong = [f"{d.path} is {d.ours}, there {d.theirs}" for d in different]
        width, heads = settings["hidden_dim"], settings.get("num_heads", 1)  # or no attention
        if family.whole_heads and width % heads:  # which transformers' class would reject
            wrong.append(f"{width=} is not a multiple of {heads=}, as transformers requires")
        if not wrong:
            return member, keys
        # Another class of module explains more than the differences below it, which are left out.
        replaced = sum(difference.replaces for difference in different)
        mismatches.append((False, replaced, len(wrong), family, wrong))
    *_, family, wrong = min(mismatches, key=itemgetter(0, 1, 2))
    reasons = "".join(
        f"{other.architecture} cannot describe it: {lines[0].rstrip('.:')}. "
        for failed, _, _, other, lines in mismatches
        if failed and other is not family and (other.model_type == meant or other not in FAMILIES)
    )
    message = (
        "no family of the hub that fidgpt knows computes what this model computes. "
        f"{reasons}Nearest is {family.architecture}"
    )
    if model_type is not None:
        message = f"{family.architecture} does not compute what this model computes"
    _require(message, wrong, most=_MAX_DIFFERENCES)
    raise AssertionError("a misfit has differences")


_ADAPTED = library.LoRALinear, library.QLoRALinear
# What every module has, and what changes no number that a model computes outside of training.
_IGNORED = {*vars(nn.Module()), "dropout", "init", "kernel", "layout", "balancing", "objective"}
_IGNORED |= {"linear", "bias", "out_init"}  # of which parameters tell
_IGNORED |= {"_pattern", "stream_dtype"}  # how a graph writes equal blocks; what processes send
_IGNORED_OF = {SelectionBias: {"rate"}, **{kind: {"scale"} for kind in _ADAPTED}}
_KINDS = {library.StackedLoRA: None, library.Capacity: None} | dict.fromkeys(_ADAPTED, Linear)


class Difference(NamedTuple):
    """A path at which two models differ; `*` stands for every layer.

    Attributes:
      path: of a module, or of a value in it.
      ours: what the first model has there.
      theirs: what the second one has.
      replaces: whether it is a module of another class, or one that only one model has.
    """

    path: str
    ours: str
    theirs: str
    replaces: bool = False


def differences(ours: nn.Module, theirs: nn.Module) -> list[Difference]:
    """Return where two models would compute differently with the same weights.

    Adapters are not compared, but sizes of parameters are. Below a module of another class nothing
    is listed.
    """
    sides = [dict(_facts(side)) for side in (ours, theirs)]
    differing: list[Difference] = []
    replaced: set[str] = set()
    for path in {**sides[0], **sides[1]}:
        here, there = (side.get(path) for side in sides)
        holders = path.split(".")
        is_known = any(".".join(holders[:i]) in replaced for i in range(len(holders)))
        if here != there and not is_known:
            shown = (_shown(side[path]) if path in side else "absent" for side in sides)
            replaces = isinstance(here, type) or isinstance(there, type)
            differing.append(Difference(path, *shown, replaces=replaces))
            replaced |= {path} if replaces else set()
    layers = len(getattr(ours, "blocks", ()))
    counts = Counter(_starred(difference) for difference in differing)
    whole = {difference for difference, count in counts.items() if count == layers > 1}
    return [*dict.fromkeys(d if (all := _starred(d)) not in whole else all for d in differing)]


def _starred(difference: Difference) -> Difference:
    return difference._replace(path=re.sub(r"(?<=^blocks\.)\d+(?=\.)", "*", difference.path))


def _facts(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the class of each module, its values, and the shapes of tensors, by path."""
    for path, module in model.named_modules(remove_duplicate=False):
        kind = _KINDS.get(type(module), type(module))
        if kind is None:
            continue
        yield path, kind
        ignored = _IGNORED | _IGNORED_OF.get(type(module), set())
        for name, value in vars(module).items():
            # Capacity, which is left out above, is dropless too outside of training.
            if name not in ignored and value is not library.dropless:
                yield f"{path}.{name}".removeprefix("."), _comparable(value)
    first: dict[int, str] = {}
    for path, tensor in tensors_of(model).items():
        known = first.setdefault(id(tensor), path)
        yield path, str(list(tensor.shape)) if known == path else f"tied to {known}"


class _Object(NamedTuple):
    """The class of an object, and all that it holds."""

    kind: Any
    content: Any


def _comparable(value: Any) -> Any:
    """Return a value that is equal to another one's if both mean the same."""
    if isinstance(value, float):
        return float(f"{value:.10g}")
    if isinstance(value, list | tuple):
        return [_comparable(item) for item in value]
    if isinstance(value, dict):
        return {key: _comparable(item) for key, item in value.items()}
    if isinstance(value, functools.partial):
        return _comparable([value.func, value.args, value.keywords])
    if isinstance(value, Tensor):
        return list(value.shape)
    if isinstance(value, nn.Module):
        return _Object(type(value), dict(_facts(value)))
    if isinstance(value, type | FunctionType) or not hasattr(value, "__dict__"):
        return value
    return _Object(type(value), _comparable(vars(value)))


def _shown(value: Any) -> str:
    if isinstance(value, str | bool | int | float | None):
        return str(value)
    if isinstance(value, _Object):
        inside = ", ".join(f"{key}={_shown(item)}" for key, item in dict(value.content).items())
        return f"{value.kind.__name__}({inside:.80})"
    if isinstance(value, list):
        return f"[{', '.join(map(_shown, value))}]"
    return getattr(value, "__name__", None) or str(value)
