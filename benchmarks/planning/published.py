"""Published runs as data: where, on what, with which config, and how fast."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Published:
    """A run that others measured.

    Attributes:
      source: where it was published.
      software: what ran it.
      hardware: a name as of --hardware.
      directives: that make the same config here.
      tokens: a second on each device; 0 if only memory is known.
      gib: of the caching allocator; 0 if it is not known.
      fits: whether constants were fitted to it; the others are held out.
    """

    source: str
    software: str
    hardware: str
    directives: tuple[str, ...]
    tokens: float = 0.0
    gib: float = 0.0
    fits: bool = False


FOUNDRY = "mosaicml/llm-foundry, scripts/train/benchmarking/README.md"
TITAN = "pytorch/torchtitan, benchmarks/llama3_h100_202412_torchtitan.md"
TITAN_A100 = "pytorch/torchtitan, docs/performance.md, 2024"
AUTOMODEL = "NVIDIA-NeMo/Automodel, performance summary"
KORTHIKANTI = "Korthikanti et al., 2022, arXiv:2205.05198, table 5"
GRATTAFIORI = "Grattafiori et al., 2024, arXiv:2407.21783, table 4: operations a second"
# Width, layers, width of a head, as in the YAML files of llm-foundry.
_MPT = {
    "1b": (2048, 24, 128),
    "3b": (2560, 32, 128),
    "7b": (4096, 32, 128),
    "13b": (5120, 40, 128),
    "30b": (7168, 48, 128),
    "70b": (8192, 80, 128),
}


def _gpt(width: int, layers: int, head: int, vocabulary: int, length: int) -> tuple[str, ...]:
    return (
        "config:gpt2_124m",
        f"set:model.hidden_dim={width}",
        f"set:model.num_layers={layers}",
        f"set:model.blocks[0].attention.head_dim={head}",
        f"set:vocab_size={vocabulary}",
        f"set:seq_len={length}",
    )


def _mpt(
    size: str,
    hardware: str,
    micro: int,
    number: int,
    tokens: float,
    *,
    ac: bool,
    length: int = 2048,
) -> Published:
    devices = int(hardware.rpartition("x")[2])
    return Published(
        source=FOUNDRY,
        software="llm-foundry, FSDP, FlashAttention, eager, 2023",
        hardware=hardware,
        directives=(
            *_gpt(*_MPT[size], 50368, length),
            "fiddler:use_fsdp",
            f"set:batch_size={micro * number * devices}",
            f"fiddler:set_micro_batch_size(size={micro})",
            *(["fiddler:use_recompute"] if ac else []),
        ),
        tokens=tokens,
        fits=True,
    )


def _llama(
    name: str, source: str, hardware: str, *directives: str, fits: bool = False,
    tokens: float = 0.0, gib: float = 0.0,
) -> Published:  # fmt: skip
    return Published(
        source=source,
        software="torchtitan, FSDP2" if "titan" in source else "NeMo Automodel, FSDP2",
        hardware=hardware,
        directives=(f"config:{name}", "set:micro_batch_size=None", *directives),
        tokens=tokens,
        gib=gib,
        fits=fits,
    )


def _megatron(
    sizes: tuple[int, int, int], hardware: str, batch_size: int, seconds: float, *directives: str
) -> Published:
    """Return a run of table 5, which gives the seconds of a step of so many sequences."""
    return Published(
        source=KORTHIKANTI,
        software="Megatron-LM, 2022",
        hardware=hardware,
        directives=(
            *_gpt(*sizes, 51200, 2048),
            f"set:batch_size={batch_size}",
            *directives,
            "fiddler:use_sequence_parallel",
        ),
        tokens=batch_size * 2048 / seconds / int(hardware.rpartition("x")[2]),
    )


def _llama405b(hardware: str, shard: int, teraflops: float) -> Published:
    return Published(
        source=GRATTAFIORI,
        software="Meta's own, 2024",
        hardware=hardware,
        directives=("config:llama3_1_405b", "set:batch_size=2048", "set:micro_batch_size=1",
                    f"fiddler:use_mesh(tensor=8, pipeline=16, shard={shard})",
                    "fiddler:use_zero2", "fiddler:use_sequence_parallel",
                    "fiddler:use_pipeline('interleaved', stages_per_rank=4)"),
        tokens=teraflops * 1e12 / (6 * 405.9e9 + 6 * 126 * 16384 * 8192),
        fits=True,
    )  # fmt: skip


_ONE_ROW = "set:micro_batch_size=1"
_INTERLEAVED = "fiddler:use_pipeline('interleaved', stages_per_rank=3)"
_SELECTIVE, _COMPILE = "fiddler:use_selective_recompute", "fiddler:use_compile"

RUNS = [
    _mpt("1b", "a100x8", 14, 4, 20513, ac=False),
    _mpt("3b", "a100x8", 10, 2, 10811, ac=False),
    _mpt("7b", "a100x8", 6, 2, 4641, ac=False),
    _mpt("13b", "a100x8", 2, 3, 2262, ac=False),
    _mpt("30b", "a100x8", 3, 21, 916, ac=True),
    _mpt("7b", "a100x8", 8, 2, 3206, ac=True, length=8192),
    _mpt("1b", "h100x8", 14, 1, 45455, ac=False),
    _mpt("3b", "h100x16", 10, 3, 24142, ac=False),
    _mpt("7b", "h100x8", 6, 1, 10643, ac=False),
    _mpt("13b", "h100x8", 2, 1, 4792, ac=False),
    _mpt("30b", "h100x8", 3, 21, 2002, ac=True),
    _mpt("70b", "h100x64", 8, 4, 1039, ac=True),
    _llama("llama3_8b", TITAN, "h100_96gbx8", "set:batch_size=16", "fiddler:use_fsdp", _SELECTIVE,
           tokens=5762, gib=82.4, fits=True),
    _llama("llama3_8b", TITAN, "h100_96gbx8", "set:batch_size=16", "fiddler:use_fsdp", _SELECTIVE,
           _COMPILE, tokens=6667, gib=77.0, fits=True),
    _llama("llama3_8b", TITAN, "h100_96gbx128", "set:batch_size=256", "fiddler:use_fsdp",
           _SELECTIVE, tokens=5605, gib=67.0),
    _llama("llama3_8b", TITAN, "h100_96gbx128", "set:batch_size=256", "fiddler:use_fsdp",
           _SELECTIVE, _COMPILE, tokens=6514, gib=62.0),
    _llama("llama3_70b", TITAN, "h100_96gbx256", "set:batch_size=512", "set:micro_batch_size=16",
           "fiddler:use_mesh(shard=32, tensor=8)", "fiddler:use_sequence_parallel",
           "fiddler:use_recompute", _COMPILE, tokens=597),
    _llama("llama3_8b", TITAN_A100, "a100x64", "set:batch_size=64", "fiddler:use_fsdp", _SELECTIVE,
           tokens=2973),
    _llama("llama3_70b", TITAN_A100, "a100x64", "set:batch_size=64", "fiddler:use_fsdp",
           "fiddler:use_recompute", tokens=331),
    _llama("llama2_13b", TITAN_A100, "a100x64", "set:batch_size=128", "fiddler:use_fsdp",
           tokens=2162),
    _llama("llama3_70b", AUTOMODEL, "h100x64", "set:batch_size=128", "set:micro_batch_size=1",
           "fiddler:use_mesh(shard=32, context=2)", "fiddler:use_recompute", tokens=867),
    _megatron((6144, 48, 96), "a100x8", 4, 1.10, "fiddler:use_mesh(tensor=8)"),
    _megatron((12288, 96, 128), "a100x64", 64, 13.75, _ONE_ROW,
              "fiddler:use_mesh(tensor=8, pipeline=8)", _INTERLEAVED),
    _megatron((20480, 105, 160), "a100x280", 280, 37.83, _ONE_ROW,
              "fiddler:use_mesh(tensor=8, pipeline=35)", _INTERLEAVED),
    _megatron((25600, 128, 160), "a100x512", 512, 71.49, _ONE_ROW,
              "fiddler:use_mesh(tensor=8, pipeline=64)"),
    _llama405b("h100x8192", 64, 430),
    _llama405b("h100x16384", 128, 400),
]  # fmt: skip
