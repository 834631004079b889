// SPDX-License-Identifier: Apache-2.0
//
// Lets autograd work on fake "cuda" tensors in a process that has no GPU.
//
// Two things stop PyTorch there, and this file puts a harmless stand-in for each:
//   - the device guard of CUDA (absent from a CPU-only build, and asking a missing driver in a CUDA one);
//   - the CUDA hooks, which must say that there is one device before the autograd engine takes its
//     streams from it.
//
// Nothing here calls CUDA. The hooks object is replaced in place for the life of the process, so it
// must never be loaded where a real GPU is visible: the Python side refuses to.

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <new>

namespace {

constexpr auto kCuda = c10::DeviceType::CUDA;

c10::Device only_device() {
  return c10::Device(kCuda, 0);
}

c10::Stream only_stream() {
  return c10::Stream(c10::Stream::DEFAULT, only_device());
}

// One device, one stream, and events that are always over.
struct OneDeviceGuard final : c10::impl::NoOpDeviceGuardImpl<kCuda> {
  c10::Device getDevice() const override {
    return only_device();
  }
  c10::Device exchangeDevice(c10::Device) const override {
    return only_device();
  }
  c10::Stream getStream(c10::Device) const noexcept override {
    return only_stream();
  }
  c10::Stream getDefaultStream(c10::Device) const override {
    return only_stream();
  }
  c10::Stream getNewStream(c10::Device, int) const override {
    return only_stream();
  }
  c10::Stream exchangeStream(c10::Stream) const noexcept override {
    return only_stream();
  }
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override {
    return true;
  }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex) const override {}
};

struct OneDeviceHooks final : at::CUDAHooksInterface {
  bool isBuilt() const override {
    return true;
  }
  bool isAvailable() const override {
    return true;
  }
  bool hasCUDA() const override {
    return true;
  }
  bool hasPrimaryContext(c10::DeviceIndex) const override {
    return true;
  }
  c10::DeviceIndex current_device() const override {
    return 0;
  }
  c10::DeviceIndex getCurrentDevice() const override {
    return 0;
  }
  c10::DeviceIndex deviceCount() const override {
    return 1;
  }
  int getNumGPUs() const override {
    return 1;
  }
};

// The stand-in takes the memory of the object that PyTorch already handed out references to.
static_assert(sizeof(OneDeviceHooks) == sizeof(at::CUDAHooksInterface));

} // namespace

extern "C" void deepum_install_fake_cuda() {
  c10::impl::device_guard_impl_registry[static_cast<size_t>(kCuda)].store(new OneDeviceGuard());
  auto* hooks = const_cast<at::CUDAHooksInterface*>(&at::detail::getCUDAHooks());
  new (hooks) OneDeviceHooks();
}
