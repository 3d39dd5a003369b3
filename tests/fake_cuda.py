"""A GPU that is not there, which has to be registered before torch is loaded."""

import ctypes
import subprocess
from importlib.util import find_spec
from pathlib import Path

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
    """Compile a device that does nothing, unless it is in the folder, in place of CUDA's."""
    spec = find_spec("torch")  # which does not load it
    assert spec is not None and spec.origin is not None
    torch_folder = Path(spec.origin).parent
    source, library = folder / "device.cpp", folder / "device.so"
    if not library.exists():
        source.write_text(_DEVICE)
        flags = ["-shared", "-fPIC", "-std=c++20", "-O0", f"-I{torch_folder / 'include'}"]
        libraries = [f"-L{torch_folder / 'lib'}", "-lc10", "-ltorch_cpu"]
        subprocess.run(["g++", *flags, str(source), "-o", str(library), *libraries], check=True)
    for name in ("libc10.so", "libtorch_cpu.so"):
        ctypes.CDLL(str(torch_folder / "lib" / name), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(library))
