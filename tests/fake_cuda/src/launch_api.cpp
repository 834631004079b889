// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "call.h"
#include "modules.h"
#include "streams.h"

namespace {

struct LaunchParams {
  CUfunction function;
  unsigned grid[3], block[3], shared_bytes;
  CUstream stream;
  void** params;
  void** extra;
};
struct LaunchExParams {
  const CUlaunchConfig* config;
  CUfunction function;
  void** params;
  void** extra;
};

// The argument bytes, copied when the launch is made, from either form.
CUresult gather(const Definition& definition, void** params, void** extra, std::vector<unsigned char>* bytes) {
  if (definition.sizes.empty()) return kSuccess;
  if (!params == !extra) return kInvalidValue;
  bytes->resize(definition.bytes() + 16);  // kernels read their parameters as a padded struct
  if (params) {
    for (size_t i = 0; i < definition.sizes.size(); i++)
      memcpy(bytes->data() + definition.offsets[i], params[i], definition.sizes[i]);
    return kSuccess;
  }
  const void* buffer = nullptr;
  size_t size = 0;
  for (; *extra != LAUNCH_PARAM_END; extra += 2) {
    if (*extra == LAUNCH_PARAM_BUFFER_POINTER)
      buffer = extra[1];
    else if (*extra == LAUNCH_PARAM_BUFFER_SIZE)
      size = *static_cast<size_t*>(extra[1]);
    else
      return kInvalidValue;
  }
  if (!buffer || size < definition.bytes()) return kInvalidValue;
  memcpy(bytes->data(), buffer, definition.bytes());
  return kSuccess;
}

CUresult launch(CUfunction handle, const unsigned* grid, const unsigned* block, CUstream stream, void** params, void** extra) {
  auto function = function_of(handle);
  if (!function) return kInvalidHandle;
  for (int i = 0; i < 3; i++)
    if (!grid[i] || !block[i]) return kInvalidValue;
  if (uint64_t(block[0]) * block[1] * block[2] > 1024) return kInvalidValue;
  auto definition = function->definition;
  std::vector<unsigned char> bytes;
  if (CUresult error = gather(*definition, params, extra, &bytes)) return error;
  if (CUresult error = load(*function)) return error;
  fake_launch shape{definition->name.c_str(), {grid[0], grid[1], grid[2]}, {block[0], block[1], block[2]}};
  bool first = !function->launched.exchange(true);
  CUresult result = submit(stream, "kernel", [definition, shape, bytes = std::move(bytes)] {
    definition->run(bytes.data(), &shape);
    values().kernels++;
  });
  if (first && !result && values().first_run_holds) hold_others(stream_of(stream));
  return result;
}

const char* symbol_of(CUfunction handle) {
  auto function = function_of(handle);
  return function ? function->definition->name.c_str() : nullptr;
}

CUresult plain(const char* name, uint32_t cbid, const LaunchParams& p, CUstream stream) {
  return call(name, cbid, 0, &p, symbol_of(p.function),
              [&] { return launch(p.function, p.grid, p.block, stream, p.params, p.extra); });
}

CUresult with_config(const char* name, uint32_t cbid, const LaunchExParams& p, bool per_thread) {
  return call(name, cbid, 0, &p, symbol_of(p.function), [&] {
    CUstream stream = p.config->stream || !per_thread ? p.config->stream : STREAM_PER_THREAD;
    return launch(p.function, p.config->grid, p.config->block, stream, p.params, p.extra);
  });
}

}  // namespace

extern "C" {

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                        unsigned shared, CUstream stream, void** params, void** extra) {
  LaunchParams p{f, {gx, gy, gz}, {bx, by, bz}, shared, stream, params, extra};
  return plain("cuLaunchKernel", 307, p, stream);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                             unsigned shared, CUstream stream, void** params, void** extra) {
  LaunchParams p{f, {gx, gy, gz}, {bx, by, bz}, shared, stream, params, extra};
  return plain("cuLaunchKernel_ptsz", 442, p, stream ? stream : STREAM_PER_THREAD);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  LaunchExParams p{config, f, params, extra};
  return with_config("cuLaunchKernelEx", 652, p, false);
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f, void** params, void** extra) {
  LaunchExParams p{config, f, params, extra};
  return with_config("cuLaunchKernelEx_ptsz", 653, p, true);
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                                   unsigned shared, CUstream stream, void** params) {
  LaunchParams p{f, {gx, gy, gz}, {bx, by, bz}, shared, stream, params, nullptr};
  return plain("cuLaunchCooperativeKernel", 477, p, stream);
}

}  // extern "C"
