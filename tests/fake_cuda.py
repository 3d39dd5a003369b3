"""Steps on a GPU that is not there: torch computes shapes and devices on it, and no numbers.

Run as a script; prints a line for each that fails. What reads a number from
the device raises, and so does an operation on tensors of two devices.
"""

import ctypes
import subprocess
import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

# Torch without CUDA can make fake tensors of a GPU, and differentiates them only where it knows
# such a device: one that does nothing, registered before torch is loaded.
_DEVICE = """
#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
constexpr auto kKind = c10::DeviceType::CUDA;
struct CUDAHooks : public at::CUDAHooksInterface {
  CUDAHooks(at::CUDAHooksArgs) {}
  void init() const override {}
  bool hasCUDA() const override { return true; }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
using at::CUDAHooksRegistry;
using at::RegistererCUDAHooksRegistry;
REGISTER_CUDA_HOOKS(CUDAHooks);
struct Guard : c10::impl::NoOpDeviceGuardImpl<kKind> {
  c10::Device getDevice() const override { return c10::Device(kKind, 0); }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Stream getStream(c10::Device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, getDevice());
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override { return getStream(getDevice()); }
  void record(void**, const c10::Stream&, const c10::DeviceIndex,
              const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
};
c10::impl::DeviceGuardImplRegistrar registrar(kKind, new Guard());
}  // namespace
"""


def register(folder: Path) -> None:
    """Compile a device that does nothing, and register it in place of CUDA's."""
    spec = find_spec("torch")  # which does not load it
    assert spec is not None and spec.origin is not None
    torch_folder = Path(spec.origin).parent
    source, library = folder / "device.cpp", folder / "device.so"
    source.write_text(_DEVICE)
    flags = ["-shared", "-fPIC", "-std=c++20", "-O0", f"-I{torch_folder / 'include'}"]
    libraries = [f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"]
    subprocess.run(["g++", *flags, str(source), "-o", str(library), *libraries], check=True)
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))


def main(folder: Path) -> None:
    """Take two steps of every case."""
    register(folder)

    import fiddle as fdl
    import torch
    from torch import nn
    from torch._subclasses import FakeTensorMode

    from fidgpt import configs, fiddlers, train
    from fidgpt.compose.runs import build_trainer
    from fidgpt.train import step

    gpu = torch.device("cuda", 0)

    class Event:
        """A moment of a device that computes nothing."""

        def __init__(self, *_: Any, **__: Any) -> None: ...

        def record(self) -> None: ...

        def synchronize(self) -> None: ...

    def micro_batches(batch: Any, *, size: int | None, **_: Any) -> list[Any]:
        """Micro-batches on the device, whose copies need a driver."""
        rows, window = batch.shape
        part = torch.empty(size or rows, window, dtype=torch.int64, device=gpu)
        return [step.MicroBatch(part, part.numel(), True)] * (rows // len(part))

    def move(model: nn.Module) -> None:
        """Give a model fake weights on the device, tied as they were."""
        made: dict[Any, Any] = {}
        for module in model.modules():
            for held in (module._parameters, module._buffers):
                for name, old in held.items():
                    if old is not None and old not in made:
                        new: Any = torch.empty(old.shape, dtype=old.dtype, device=gpu)
                        if isinstance(old, nn.Parameter):
                            new = nn.Parameter(new, old.requires_grad)
                        vars(new).update(vars(old))
                        made[old] = new
                    held[name] = None if old is None else made[old]

    def take(cfg: Any) -> None:
        trainer = build_trainer(cfg)
        trainer.parallel._device = gpu
        with FakeTensorMode():
            move(trainer.model)
            state = trainer.init_state()
            rows = torch.zeros(trainer.batch_size, trainer.seq_len + 1, dtype=torch.int64)
            for _ in range(2):
                trainer.launch(state, trainer._load(state, rows))
            devices = {one.device for one in state.model.parameters()}
            assert devices == {gpu}, f"parameters are on {devices}"

    torch.Event = Event  # pyright: ignore[reportAttributeAccessIssue]
    step.micro_batches = micro_batches
    cases: dict[str, Any] = {
        "plain": [],
        "average": [fiddlers.use_ema],
        "z_loss": [fiddlers.use_z_loss],
        "meters": [partial(fiddlers.use_step_meters, every=1)],
        "experts": [partial(fiddlers.use_moe, num_experts=4)],
        "muon": [fiddlers.use_muon],
    }
    for name, changes in cases.items():
        for precision in (train.Float32, train.BFloat16):
            if name == "experts" and precision is train.Float32:
                continue  # torch multiplies groups on a GPU without waiting in bfloat16 only
            cfg = configs.debug()
            for change in changes:
                change(cfg)
            cfg.precision = fdl.Config(precision)
            try:
                take(cfg)
            except Exception as error:
                print(f"{name} in {precision.__name__}: {type(error).__name__}: {error}"[:500])
    # What waits is noticed: a guard reads the loss before the optimizer's step.
    cfg = configs.debug()
    fiddlers.use_skip_step(cfg)
    try:
        take(cfg)
    except Exception as error:
        print(f"guard: {type(error).__name__}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
