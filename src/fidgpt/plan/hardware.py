"""What devices can do: peaks from data sheets, and what fidgpt assumes that a run reaches of them.

A data sheet's numbers have the source beside them. The shares that runs reach were fitted to
published runs by `benchmarks/planning`, which states the error; `python -m fidgpt.calibrate`
replaces them on a machine at hand.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from fidgpt.files import cache_directory, read_json

__all__ = [
    "CHIPS",
    "Cluster",
    "Device",
    "UnknownHardware",
    "calibrated",
    "cluster_named",
    "find_device",
]

_T, _G = 1e12, 1e9
_USABLE = 0.99  # share of memory that is sold as so many GB, and has so many GiB
CALIBRATION = "calibration.json"  # in the cache directory


class UnknownHardware(ValueError):
    """There is no table of a device; the message names those that there are."""


@dataclass(frozen=True, kw_only=True)
class Device:
    """A device, its links, and what a run reaches of its peaks.

    Attributes:
      name: short, as in `h100x8`.
      title: what drivers call it.
      flops: peak operations per second without sparsity, by number format.
      memory: bytes that programs may use.
      bandwidth: of its memory, bytes per second.
      link: to the others in its machine, bytes per second in each direction.
      network: to other machines, the same, for each device.
      per_machine: devices of a machine.
      source: of these numbers.
      products: share of the peak that large matrix products reach in training.
      attention: the same of fused attention.
      half_size: rows, columns or depth of a product at which half of that is lost.
      moving: share of `bandwidth` that other operations reach.
      sending: share of `link` and `network` that collectives reach.
      latency: seconds of a collective between neighbors, in a machine and beyond.
      launch: seconds to start an operation, which programs without compilation wait for.
      step: seconds of each optimizer step besides.
    """

    name: str
    title: str
    flops: Mapping[str, float]
    memory: float
    bandwidth: float
    link: float
    network: float = 50 * _G
    per_machine: int = 8
    source: str
    products: float = 0.6
    attention: float = 0.4
    half_size: float = 120.0
    moving: float = 0.65
    sending: float = 0.8
    latency: tuple[float, float] = (8e-6, 20e-6)
    launch: float = 6e-6
    step: float = 5e-3

    @property
    def kind(self) -> str:
        """The type of the device for torch."""
        return "cpu" if self.name == "cpu" else "cuda"

    def peak(self, dtype: str) -> float:
        """Return the peak of products in a number format; the peak of float32 is tf32's."""
        return self.flops.get(dtype) or self.flops["bfloat16"]


def _nvidia(
    title: str,
    bfloat16: float,
    memory: float,
    bandwidth: float,
    link: float,
    *,
    source: str,
    float8: float = 0,
    **others: Any,
) -> Device:
    """Return a device from teraflops, gigabytes, and gigabytes per second."""
    flops = {"bfloat16": bfloat16 * _T, "float16": bfloat16 * _T, "float32": bfloat16 * _T / 2}
    if float8:
        flops["float8"] = float8 * _T
    return Device(
        name=title.lower().replace(" ", ""),
        title=title,
        flops=flops,
        memory=_USABLE * memory * 2**30,
        bandwidth=bandwidth * _G,
        link=link * _G,
        source=source,
        **others,
    )


_AMPERE = {"products": 0.72, "attention": 0.45, "network": 25 * _G}
_HOPPER = {"products": 0.60, "attention": 0.55}
_BLACKWELL = {"products": 0.52, "attention": 0.45}
_CARD = {"per_machine": 8, "network": 12.5 * _G, "sending": 0.6}
_PCIE4, _PCIE5 = 32, 64  # gigabytes per second in each direction of 16 lanes

# Of a processor with a few cores, whose programs call torch from Python: measured on AMD Zen 4, but
# for `products`: its peak is what products reach as a run begins, not that of a data sheet.
CPU: Mapping[str, Any] = {
    "bandwidth": 20 * _G,
    "link": 2 * _G,
    "network": 1 * _G,
    "per_machine": 64,
    "products": 0.95,
    "attention": 0.35,
    "half_size": 24.0,
    "moving": 0.5,
    "launch": 12e-6,
    "step": 6e-3,
    "latency": (150e-6, 300e-6),
}

# Variants of a model precede the model itself.
CHIPS: tuple[Device, ...] = (
    _nvidia("GB200", 2500, 186, 8000, 900, float8=5000, per_machine=72, **_BLACKWELL,
            source="NVIDIA GB200 NVL72 data sheet, 2024: per GPU, dense"),
    _nvidia("B300", 2250, 288, 8000, 900, float8=4500, network=100 * _G, **_BLACKWELL,
            source="NVIDIA HGX B300 data sheet, 2025: per GPU, dense"),
    _nvidia("B200", 2250, 180, 7700, 900, float8=4500, **_BLACKWELL,
            source="NVIDIA HGX B200 data sheet, 2024: per GPU, dense"),
    _nvidia("GH200", 989, 96, 4000, 450, float8=1979, per_machine=1, **_HOPPER,
            source="NVIDIA GH200 data sheet, 2023"),
    _nvidia("H200 NVL", 835, 141, 4800, 450, float8=1671, per_machine=4, **_HOPPER,
            source="NVIDIA H200 data sheet, 2024: NVL, bridges of four"),
    _nvidia("H200", 989, 141, 4800, 450, float8=1979, **_HOPPER,
            source="NVIDIA H200 data sheet, 2024: SXM"),
    _nvidia("H100 PCIe", 756, 80, 2000, _PCIE5, float8=1513, network=25 * _G, **_HOPPER,
            source="NVIDIA H100 data sheet, 2022: PCIe, without bridges"),
    _nvidia("H100 NVL", 835, 94, 3900, 300, float8=1671, per_machine=2, **_HOPPER,
            source="NVIDIA H100 data sheet, 2023: NVL, bridges of two"),
    _nvidia("H100 96GB", 989, 96, 2400, 450, float8=1979, products=0.44, attention=0.25,
            source="torchtitan, benchmarks/llama3_h100_202412: HBM2e, limited to 500 W"),
    _nvidia("H100", 989, 80, 3350, 450, float8=1979, **_HOPPER,
            source="NVIDIA H100 data sheet, 2022: SXM"),
    _nvidia("H800", 989, 80, 3350, 200, float8=1979, **_HOPPER,
            source="DeepSeek-V3 technical report, 2024, section 3.1: NVLink of 400 GB/s"),
    _nvidia("H20", 148, 96, 4000, 450, float8=296, **{**_HOPPER, "products": 0.9},
            source="NVIDIA H20 data sheet, 2024"),
    _nvidia("A100", 312, 80, 2039, 300, **_AMPERE,
            source="NVIDIA A100 data sheet, 2021: SXM, 80 GB"),
    _nvidia("A800", 312, 80, 2039, 200, **_AMPERE, source="NVIDIA A800 data sheet, 2022: SXM"),
    _nvidia("A40", 150, 48, 696, _PCIE4, **_CARD, source="NVIDIA A40 data sheet, 2021"),
    _nvidia("A30", 165, 24, 933, _PCIE4, **_CARD, source="NVIDIA A30 data sheet, 2021"),
    _nvidia("A10", 125, 24, 600, _PCIE4, **_CARD, source="NVIDIA A10 data sheet, 2021"),
    _nvidia("L40S", 362, 48, 864, _PCIE4, float8=733, **_CARD,
            source="NVIDIA L40S data sheet, 2023"),
    _nvidia("L40", 181, 48, 864, _PCIE4, **_CARD, source="NVIDIA L40 data sheet, 2022"),
    _nvidia("L20", 119.5, 48, 864, _PCIE4, **_CARD, source="NVIDIA L20 data sheet, 2023"),
    _nvidia("L4", 121, 24, 300, _PCIE4, float8=242, **_CARD, source="NVIDIA L4 data sheet, 2023"),
    _nvidia("RTX A6000", 155, 48, 768, _PCIE4, **_CARD, source="NVIDIA RTX A6000 data sheet, 2020"),
    _nvidia("RTX 5090", 209, 32, 1792, _PCIE5, float8=419, **_CARD,
            source="NVIDIA RTX Blackwell architecture, 2025, appendix A"),
    _nvidia("RTX 4090", 165, 24, 1008, _PCIE4, float8=330, **_CARD,
            source="NVIDIA Ada architecture, 2022, appendix A"),
    _nvidia("RTX 3090", 71, 24, 936, _PCIE4, **_CARD,
            source="NVIDIA GA102 architecture, 2020, appendix A"),
    _nvidia("MI325X", 1307, 256, 6000, 448, float8=2615, products=0.42, attention=0.28,
            source="AMD Instinct MI325X data sheet, 2024"),
    _nvidia("MI300X", 1307, 192, 5300, 448, float8=2615, products=0.42, attention=0.28,
            source="AMD Instinct MI300X data sheet, 2023"),
    # One of its two halves, each of which is a device.
    _nvidia("MI250X", 191.5, 64, 1638, 200, per_machine=8, products=0.65,
            source="AMD Instinct MI250X data sheet, 2021: half of the module"),
)  # fmt: skip
_BY_NAME = {device.name: device for device in CHIPS}


def find_device(title: str) -> Device | None:
    """Return a device by the name that drivers report, as `NVIDIA H100 80GB HBM3`."""
    is_96gb = "H100" in title and "96GB" in title.replace(" ", "")
    named = "H100 96GB" if is_96gb else title
    return next((chip for chip in CHIPS if re.search(rf"\b{chip.title}\b", named)), None)


@dataclass(frozen=True, kw_only=True)
class Cluster:
    """Devices that a run has.

    Attributes:
      device: each of them.
      size: their number.
      measured: the file by which the device was calibrated; "" for the table's numbers.
    """

    device: Device
    size: int
    measured: str = ""

    def bandwidth(self, num_ranks: int, stride: int) -> tuple[float, int]:
        """Return bytes per second of a collective for each process, and the machines it spans.

        Of a group over several machines, all processes in one machine send to the next one at
        once, each through a port of its own.

        Args:
          num_ranks: processes of the group.
          stride: between the ranks of neighbors in it.
        """
        inside = max(1, min(num_ranks, self.device.per_machine // stride))
        machines = -(-num_ranks // inside)
        link = self.device.link * self.device.sending
        if machines == 1:
            return link, 1
        return min(link, self.device.network * inside * self.device.sending), machines

    def seconds(self, kind: str, size: float, num_ranks: int, stride: int) -> float:
        """Return the time of a collective of a whole tensor.

        A ring sends all but one of `num_ranks` parts of it past each process (Thakur et al., 2005,
        https://doi.org/10.1177/1094342005051521); a sum sends it twice.

        Args:
          kind: gather, scatter, reduce, exchange or send.
          size: bytes of the whole tensor.
          num_ranks: processes that take part.
          stride: between the ranks of neighbors.
        """
        if num_ranks < 2:
            return 0.0
        each, machines = self.bandwidth(num_ranks, stride)
        near, far = self.device.latency
        inside = -(-num_ranks // machines)
        steps = near * (inside > 1) + far * (machines - 1) ** 0.5
        if kind == "send":
            return steps + size / each
        if kind == "exchange" and machines > 1:  # all but a machine's own part leaves it
            outside = size * (machines - 1) / machines
            return steps + outside / (self.device.network * self.device.sending)
        passes = 2 if kind == "reduce" else 1
        return passes * (steps + size * (num_ranks - 1) / num_ranks / each)


def cluster_named(name: str, *, cpu: Device | None = None) -> Cluster:
    """Return the devices of a name such as `h100x64`, with what was measured of them if anything.

    Args:
      name: a device and a number.
      cpu: the one at hand, for names such as `cpux2`.

    Raises:
      UnknownHardware: there is no such device, or the number is none.
    """
    kind, _, count = name.rpartition("x")
    if name in _BY_NAME or not count.isdecimal():
        kind, count = name, "1"  # as of mi300x
    kind = kind.replace("_", "").replace("-", "")
    device = cpu if kind == "cpu" else _BY_NAME.get(kind)
    if device is None:
        names = ["cpu", *sorted(_BY_NAME)]
        nearest = next(iter(get_close_matches(kind, names, cutoff=0.5)), "h100")
        raise UnknownHardware(
            f"the speed of {name!r} is unknown: name a device and a number of them, "
            f"such as {nearest}x8. Devices are {', '.join(names)}."
        )
    if int(count) < 1:
        raise UnknownHardware(f"{name!r} has no device: name a number of them, such as {kind}x8.")
    return calibrated(device, int(count))


def calibrated(device: Device, size: int) -> Cluster:
    """Return devices with what `python -m fidgpt.calibrate` measured of their kind here."""
    path = cache_directory() / CALIBRATION
    measured: dict[str, Any] = read_json(path).get(device.name, {})
    if not measured:
        return Cluster(device=device, size=size)
    speeds = {name: value for name, value in measured.items() if name in vars(device)}
    if "latency" in speeds:
        speeds["latency"] = tuple(speeds["latency"])
    return Cluster(device=replace(device, **speeds), size=size, measured=str(path))
