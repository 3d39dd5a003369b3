"""Families of Hugging Face models."""

from collections.abc import Callable

import torch

from fidgpt.configs.deepseek_v2 import HUB as DEEPSEEK_V2
from fidgpt.configs.deepseek_v3 import HUB as DEEPSEEK_V3
from fidgpt.configs.gemma2 import HUB as GEMMA2
from fidgpt.configs.gemma3 import HUB as GEMMA3
from fidgpt.configs.gpt2 import HUB as GPT2
from fidgpt.configs.gpt_oss import HUB as GPT_OSS
from fidgpt.configs.hub import Family
from fidgpt.configs.llama import HUB as LLAMA
from fidgpt.configs.mistral import HUB as MISTRAL
from fidgpt.configs.mixtral import HUB as MIXTRAL
from fidgpt.configs.olmo2 import HUB as OLMO2
from fidgpt.configs.qwen2 import HUB as QWEN2
from fidgpt.configs.qwen3 import HUB as QWEN3
from fidgpt.configs.qwen3_moe import HUB as QWEN3_MOE
from fidgpt.configs.smollm import HUB as SMOLLM3
from fidgpt.graph import ConfigError, bind, build, suggest
from fidgpt.interop.hugging_face.settings import Settings, config_of
from fidgpt.model import LanguageModel

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    MIXTRAL,
    QWEN2,
    QWEN3,
    QWEN3_MOE,
    GEMMA2,
    GEMMA3,
    DEEPSEEK_V2,
    DEEPSEEK_V3,
    OLMO2,
    SMOLLM3,
    GPT_OSS,
    GPT2,
)


def family_of(model_type: str) -> Family:
    """The family that config.json calls so.

    Raises:
      ConfigError: we have none.
    """
    known = {family.model_type: family for family in FAMILIES}
    if model_type not in known:
        raise ConfigError(f"{model_type=} is none that fidgpt knows. {suggest(model_type, known)}")
    return known[model_type]


def member_of(family: Family, settings: Settings) -> LanguageModel:
    """The model of some settings, on the meta device.

    Raises:
      ConfigError: the family has no such member.
    """
    model = bind(config_of(family, settings)).model
    with torch.device("meta"):
        return build(model)


_OF_BARE_MODELS = ("transformer.", "model.")  # what a model has before it where a head is beside
_OF_TEXT = (("model.language_model.", "model."), ("language_model.", ""))  # where an eye is beside


def known_name(name: str, is_known: Callable[[str], bool]) -> str:
    """The name that is known, of a tensor saved from a bare model or from one of text and images.

    A name that is known, or is not known in any way, stays as it is.
    """
    candidates = [prefix + name for prefix in _OF_BARE_MODELS]
    candidates += [name.replace(old, new, 1) for old, new in _OF_TEXT if name.startswith(old)]
    return next((one for one in [name, *candidates] if is_known(one)), name)
