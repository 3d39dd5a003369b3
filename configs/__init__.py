"""Named configs: each function returns the whole graph of a run."""

from fidgpt.configs.cohere import command_r, command_r_08_2024
from fidgpt.configs.deepseek2 import deepseek_v2_lite
from fidgpt.configs.deepseek3 import deepseek_v3
from fidgpt.configs.falcon import falcon_7b, falcon_40b
from fidgpt.configs.gemma2 import gemma2_2b, gemma2_9b, gemma2_27b
from fidgpt.configs.gemma3 import gemma3_1b, gemma3_4b, gemma3_12b, gemma3_27b, gemma3_270m
from fidgpt.configs.gpt2 import gpt2_124m, gpt2_355m, gpt2_774m, gpt2_1558m
from fidgpt.configs.gpt_neox import (
    gpt_neox_20b,
    pythia_1_4b,
    pythia_1b,
    pythia_2_8b,
    pythia_6_9b,
    pythia_12b,
    pythia_14m,
    pythia_31m,
    pythia_70m,
    pythia_160m,
    pythia_410m,
)
from fidgpt.configs.gpt_oss import gpt_oss_20b, gpt_oss_120b
from fidgpt.configs.granite import granite3_2b, granite3_8b
from fidgpt.configs.llama import (
    llama2_7b,
    llama2_13b,
    llama2_70b,
    llama3_1_8b,
    llama3_1_70b,
    llama3_1_405b,
    llama3_2_1b,
    llama3_2_3b,
    llama3_8b,
    llama3_70b,
)
from fidgpt.configs.mistral import mistral_7b, mistral_7b_v0_3, mistral_nemo_12b, mistral_small_24b
from fidgpt.configs.mixtral import mixtral_8x7b, mixtral_8x22b
from fidgpt.configs.olmo2 import olmo2_1b, olmo2_7b, olmo2_13b, olmo2_32b
from fidgpt.configs.olmoe import olmoe_1b_7b
from fidgpt.configs.phi3 import phi3_3_8b, phi3_14b, phi4_14b
from fidgpt.configs.qwen2 import (
    qwen2_5_0_5b,
    qwen2_5_1_5b,
    qwen2_5_3b,
    qwen2_5_7b,
    qwen2_5_14b,
    qwen2_5_32b,
    qwen2_5_72b,
)
from fidgpt.configs.qwen3 import qwen3_0_6b, qwen3_1_7b, qwen3_4b, qwen3_8b, qwen3_14b, qwen3_32b
from fidgpt.configs.qwen3_moe import qwen3_30b_a3b, qwen3_235b_a22b
from fidgpt.configs.small import base, debug
from fidgpt.configs.smollm import (
    smollm2_1_7b,
    smollm2_135m,
    smollm2_360m,
    smollm3_3b,
    smollm_1_7b,
    smollm_135m,
    smollm_360m,
)

__all__ = [
    "base",
    "command_r",
    "command_r_08_2024",
    "debug",
    "deepseek_v2_lite",
    "deepseek_v3",
    "falcon_7b",
    "falcon_40b",
    "gemma2_2b",
    "gemma2_9b",
    "gemma2_27b",
    "gemma3_1b",
    "gemma3_4b",
    "gemma3_12b",
    "gemma3_27b",
    "gemma3_270m",
    "gpt2_124m",
    "gpt2_355m",
    "gpt2_774m",
    "gpt2_1558m",
    "gpt_neox_20b",
    "gpt_oss_20b",
    "gpt_oss_120b",
    "granite3_2b",
    "granite3_8b",
    "llama2_7b",
    "llama2_13b",
    "llama2_70b",
    "llama3_1_8b",
    "llama3_1_70b",
    "llama3_1_405b",
    "llama3_2_1b",
    "llama3_2_3b",
    "llama3_8b",
    "llama3_70b",
    "mistral_7b",
    "mistral_7b_v0_3",
    "mistral_nemo_12b",
    "mistral_small_24b",
    "mixtral_8x7b",
    "mixtral_8x22b",
    "olmo2_1b",
    "olmo2_7b",
    "olmo2_13b",
    "olmo2_32b",
    "olmoe_1b_7b",
    "phi3_3_8b",
    "phi3_14b",
    "phi4_14b",
    "pythia_1_4b",
    "pythia_1b",
    "pythia_2_8b",
    "pythia_6_9b",
    "pythia_12b",
    "pythia_14m",
    "pythia_31m",
    "pythia_70m",
    "pythia_160m",
    "pythia_410m",
    "qwen2_5_0_5b",
    "qwen2_5_1_5b",
    "qwen2_5_3b",
    "qwen2_5_7b",
    "qwen2_5_14b",
    "qwen2_5_32b",
    "qwen2_5_72b",
    "qwen3_0_6b",
    "qwen3_1_7b",
    "qwen3_4b",
    "qwen3_8b",
    "qwen3_14b",
    "qwen3_30b_a3b",
    "qwen3_32b",
    "qwen3_235b_a22b",
    "smollm2_1_7b",
    "smollm2_135m",
    "smollm2_360m",
    "smollm3_3b",
    "smollm_1_7b",
    "smollm_135m",
    "smollm_360m",
]
