"""GGUF files, which llama.cpp and the programs built on it run."""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fidgpt.data import ChatTemplate, Tokenizer, with_begin
from fidgpt.data.errors import import_extra
from fidgpt.files import atomic_path
from fidgpt.graph import ConfigError
from fidgpt.interop.hugging_face.files import layout_of
from fidgpt.interop.hugging_face.hub import fitting_member
from fidgpt.model import LanguageModel
from fidgpt.model.quantized import whole_weights
from fidgpt.model.rope_scaling import Llama3Scaling
from fidgpt.train.run_directory import print_stderr

Values = Mapping[str, Any]
Form = Callable[[str, Tensor, Values], Tensor]


def _interleaved(name: str, tensor: Tensor, values: Values) -> Tensor:
    """Reorder the rows of queries and keys: llama's RoPE turns neighbors, not halves."""
    heads = {"q_proj": "num_attention_heads", "k_proj": "num_key_value_heads"}
    kind = next((kind for kind in heads if f".{kind}." in name), None)
    if kind is None:
        return tensor
    halves = tensor.view(values[heads[kind]], 2, -1, *tensor.shape[1:])
    return halves.transpose(1, 2).reshape(tensor.shape)


def _shifted_norms(name: str, tensor: Tensor, values: Values) -> Tensor:
    """Add what Gemma's norms add to their weights."""
    return tensor + 1 if name.endswith("norm.weight") else tensor


def _transposed(name: str, tensor: Tensor, values: Values) -> Tensor:
    """Return a matrix of GPT-2 transposed, as other models store it."""
    return tensor.t() if ".c_" in name and tensor.ndim == 2 else tensor


def _unchanged(name: str, tensor: Tensor, values: Values) -> Tensor:
    return tensor


class _Architecture(NamedTuple):
    """llama.cpp's name for a family, and the settings that llama.cpp fixes.

    Attributes:
      name: in metadata.
      activation: of its MLPs, by its name in config.json.
      form: how tensors differ from the hub's tensors.
      full_every: one of so many layers has no window.
      allows: keys that only add biases, which llama.cpp reads where they are.
    """

    name: str
    activation: str = "silu"
    form: Form = _unchanged
    full_every: int = 1
    allows: tuple[str, ...] = ()


_LLAMA = _Architecture("llama", form=_interleaved, allows=("attention_bias", "mlp_bias"))
# By the model types of the hub. Each is compared with llama.cpp itself.
_ARCHITECTURES = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": _Architecture("qwen2"),
    "qwen3": _Architecture("qwen3"),
    "olmo2": _Architecture("olmo2"),
    "gemma2": _Architecture("gemma2", "gelu_pytorch_tanh", _shifted_norms, full_every=2),
    "gemma3_text": _Architecture("gemma3", "gelu_pytorch_tanh", _shifted_norms, full_every=6),
    "gpt2": _Architecture("gpt2", "gelu_new", _transposed),
}
_HEAD = ("attention.key_length", "attention.value_length", "rope.dimension_count")
# Keys of a config.json, and the metadata that say the same.
_KEYS = {
    **dict.fromkeys(("num_hidden_layers", "n_layer"), ("block_count",)),
    **dict.fromkeys(("max_position_embeddings", "n_positions"), ("context_length",)),
    **dict.fromkeys(("hidden_size", "n_embd"), ("embedding_length",)),
    **dict.fromkeys(("intermediate_size", "n_inner"), ("feed_forward_length",)),
    **dict.fromkeys(("num_attention_heads", "n_head"), ("attention.head_count",)),
    "num_key_value_heads": ("attention.head_count_kv",),
    "head_dim": _HEAD,
    "rms_norm_eps": ("attention.layer_norm_rms_epsilon",),
    "layer_norm_epsilon": ("attention.layer_norm_epsilon",),
    "rope_theta": ("rope.freq_base",),
    "rope_local_base_freq": ("rope.freq_base_swa",),
    "sliding_window": ("attention.sliding_window",),
    "attn_logit_softcapping": ("attn_logit_softcapping",),
    "final_logit_softcapping": ("final_logit_softcapping",),
}
# Said by the tensors, or beside the table.
_SAID = ("vocab_size", "tie_word_embeddings", "scale_attn_weights", "rope_scaling", "layer_types")
# How llama.cpp splits texts, by an expression that the tokenizer's own has in it.
_SPLITS = {
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*": "llama-bpe",
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*": "qwen2",
}
_NORMAL, _CONTROL, _UNUSED = 1, 3, 5  # kinds of tokens
_TABLES = "token_embd.weight", "output.weight"
TYPES = ("f32", "f16", "bf16", "q8_0")


@torch.no_grad()
def save_gguf(
    model: LanguageModel,
    path: str | Path,
    *,
    seq_len: int,
    tokenizer: Tokenizer,
    dtype: str | None = None,
    model_type: str | None = None,
) -> str:
    """Write a model and its tokenizer as one file for llama.cpp, and return its architecture there.

    Args:
      model: with memory; low-rank adapters are added to their weights.
      path: the file, which is replaced.
      seq_len: the longest sequence that the model is for, in tokens.
      tokenizer: byte-level; its chat template and its special tokens are written too.
      dtype: number format of matrices: `f32`, `f16`, `bf16` or `q8_0`; defaults to the model's.
      model_type: of the family, where several compute the same.

    Raises:
      ConfigError: llama.cpp has no such model, or computes something of it in another way.
      DataError: the package `gguf` is not installed.
    """
    gguf = import_extra("gguf", extra="gguf", purpose="a GGUF file")
    logging.getLogger(gguf.__name__).setLevel(logging.WARNING)
    with whole_weights(model):
        member, keys = fitting_member(model, seq_len=seq_len, model_type=model_type)
        kind = member.family.model_type
        if kind not in _ARCHITECTURES:
            raise ConfigError(
                f"{kind} cannot become a GGUF file: fidgpt writes {', '.join(_ARCHITECTURES)}. "
                "Export it for transformers, to a directory."
            )
        architecture = _ARCHITECTURES[kind]
        metadata = _metadata(architecture, keys, kind)
        layout = layout_of(member.family, model, member.settings, merge=True)
        chosen = dtype or {torch.float32: "f32", torch.float16: "f16"}.get(
            next(model.parameters()).dtype, "bf16"
        )
        quantization = gguf.GGMLQuantizationType[chosen.upper()]
        numbers = {value: number for number, value in gguf.MODEL_ARCH_NAMES.items()}
        names = gguf.get_tensor_name_map(numbers[architecture.name], metadata["block_count"])
        with atomic_path(Path(path)) as draft:
            writer = gguf.GGUFWriter(draft, architecture.name)
            for name, value in metadata.items():
                add = writer.add_float32 if isinstance(value, float) else writer.add_uint32
                (writer.add_string if isinstance(value, str) else add)(
                    f"{architecture.name}.{name}", value
                )
            _write_tokenizer(writer, tokenizer)
            for theirs in layout.pieces:
                tensor = architecture.form(theirs, layout.tensor(theirs).float(), keys)
                ours = names.get_name(theirs, try_suffixes=(".weight", ".bias"))
                if ours in _TABLES:  # llama.cpp would draw what has a row and no token
                    tensor = tensor[: tokenizer.vocab_size]
                numbers_of = tensor.contiguous().numpy()
                is_matrix = tensor.ndim > 1 and "position" not in ours
                form = quantization if is_matrix else gguf.GGMLQuantizationType.F32
                packed = gguf.quants.quantize(numbers_of, form)
                writer.add_tensor(ours, packed, raw_dtype=form)
            if (factors := _rope_factors(keys)) is not None:
                writer.add_tensor("rope_freqs.weight", factors.numpy())
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
        return architecture.name


def _metadata(architecture: _Architecture, keys: Values, kind: str) -> dict[str, Any]:
    """Return the metadata of a model.

    Raises:
      ConfigError: a key of its config.json has no place in them.
    """
    metadata: dict[str, Any] = {}
    wrong: list[str] = []
    for name, value in keys.items():
        if name in _KEYS and value is not None:
            metadata |= dict.fromkeys(_KEYS[name], value)
        elif name in ("hidden_act", "hidden_activation", "activation_function"):
            wrong += [f"{name}={value!r}"] * (value != architecture.activation)
        elif name == "query_pre_attn_scalar":  # llama.cpp takes the size of a head
            if value != keys["head_dim"]:
                wrong.append(f"{name}={value} beside head_dim={keys['head_dim']}")
        elif value and name not in (*_SAID, *architecture.allows):
            wrong.append(f"{name}={value!r}")
    period = architecture.full_every
    pattern = ["sliding_attention"] * (period - 1) + ["full_attention"]
    kinds = [pattern[index % period] for index in range(metadata["block_count"])]
    if keys.get("layer_types") and keys["layer_types"] != kinds:
        wrong.append(f"layer_types other than a full one in every {period}")
    window = keys.get("sliding_window")
    if window and period == 1 and window < metadata["context_length"]:
        wrong.append(f"{window=} below the context of {metadata['context_length']}")
    scaling = dict(keys.get("rope_scaling") or {})
    match scaling.pop("rope_type", "default"):
        case "default":
            pass
        case "llama3" if architecture is _LLAMA:
            pass  # by a tensor
        case "linear" | "yarn" as rope_type:
            metadata["rope.scaling.type"] = rope_type
            metadata["rope.scaling.factor"] = scaling.pop("factor")
            if original := scaling.pop("original_max_position_embeddings", None):
                metadata["rope.scaling.original_context_length"] = original
            plain = {"beta_fast": 32.0, "beta_slow": 1.0, "truncate": True}
            others = {key: value for key, value in scaling.items() if value is not None}
            wrong += [f"{key}={value}" for key, value in others.items() if plain.get(key) != value]
        case rope_type:
            wrong.append(f"{rope_type=}")
    if wrong:
        raise ConfigError(
            f"{kind} cannot become a GGUF file, since llama.cpp has no {', no '.join(wrong)}. "
            "Export it for transformers, to a directory."
        )
    if "head_dim" not in keys:
        head = metadata["embedding_length"] // metadata["attention.head_count"]
        metadata |= {"attention.head_count_kv": metadata["attention.head_count"]}
        metadata |= dict.fromkeys(_HEAD[:2], head)
    return metadata


def _rope_factors(keys: Values) -> Tensor | None:
    """Return by what Llama 3's scaling divides the frequency of each pair; None without it."""
    scaling = keys.get("rope_scaling") or {}
    if scaling.get("rope_type") != "llama3":
        return None
    plain = keys["rope_theta"] ** -(torch.arange(0, keys["head_dim"], 2) / keys["head_dim"])
    names = ("factor", "low_freq_factor", "high_freq_factor")
    options = {name: scaling[name] for name in names}
    scale = Llama3Scaling(original_seq_len=scaling["original_max_position_embeddings"], **options)
    return (plain / scale(plain, theta=keys["rope_theta"])).float()


def _write_tokenizer(writer: Any, tokenizer: Tokenizer) -> None:
    """Write tokens, merges, special tokens and the chat template.

    Warns where llama.cpp splits texts in another way.
    """
    content: Any = json.loads(tokenizer.as_json())
    texts = {number: text for text, number in content["model"]["vocab"].items()}
    special = {number: name for name, number in tokenizer.special_ids().items()}
    texts |= {token["id"]: token["content"] for token in content.get("added_tokens", ())}
    numbers = range(tokenizer.vocab_size)
    kinds = [_CONTROL if i in special else _NORMAL if i in texts else _UNUSED for i in numbers]
    pairs = content["model"]["merges"]
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(_split(content.get("pre_tokenizer")))
    writer.add_token_list([texts.get(number, f"[unused{number}]") for number in numbers])
    writer.add_token_types(kinds)
    # An empty list would not be written, and llama.cpp wants one: of letters that are no byte's.
    writer.add_token_merges(merges or ["\u0500 \u0500"])
    begin, end = tokenizer.begin_of_text, tokenizer.end_of_text
    is_added = begin is not None and tokenizer.puts_begin  # to what a template writes, too
    tokens = {} if tokenizer.chat is None else tokenizer.chat.tokens
    named = tokenizer.special_ids().get(tokens.get("bos_token", ""), end)
    writer.add_bos_token_id(named if begin is None else begin)
    writer.add_add_bos_token(is_added)
    writer.add_eos_token_id(end)
    if tokenizer.chat is not None:
        front = "" if begin != end or is_added else texts[end]
        writer.add_chat_template(with_begin(tokenizer.chat, front))
        for number in ChatTemplate(tokenizer).ends_of_turn():
            writer.add_eot_token_id(number)


def _split(content: Any) -> str:
    """Return llama.cpp's name of how a tokenizer.json splits texts into words."""
    text = json.dumps(content)
    for part, name in _SPLITS.items():
        if json.dumps(part)[1:-1] in text:
            return name
    if '"Regex"' in text:
        print_stderr(
            "warning: llama.cpp does not split texts as this tokenizer does, and reads some as "
            "other tokens than the model was trained on. Give it tokens, or export the model for "
            "transformers."
        )
    return "gpt-2"  # or nothing is split, since no bytes are merged
