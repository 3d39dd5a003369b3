"""The families of models that can be read from the hub's files and written to them.

Where a model is one of several, the first one here is what it is written as.
"""

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
from fidgpt.graph import ConfigError, suggest

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
