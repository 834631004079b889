// SPDX-License-Identifier: Apache-2.0
//
// Kernels: C functions with a name and a layout of parameters, reached through modules and libraries.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "abi.h"
#include "fake.h"

struct Definition {
  std::string name;
  fake_kernel run;
  std::vector<uint32_t> offsets, sizes;
  uint32_t bytes() const { return offsets.empty() ? 0 : offsets.back() + sizes.back(); }
};

// A CUfunction or a CUkernel: the driver takes either for a launch, but not for questions.
struct Function {
  std::shared_ptr<const Definition> definition;
  bool is_kernel = false;
  CUmodule module = nullptr;
  std::atomic<bool> loaded{false}, launched{false};
};

std::shared_ptr<Function> function_of(CUfunction handle);
CUresult load(Function& function);  // waits for the device the first time, if loading is lazy
