// SPDX-License-Identifier: Apache-2.0
//
// What callers of the CUDA driver pass and get: the few types and numbers that the fake needs.
#pragma once

#include <cstddef>
#include <cstdint>

using CUdeviceptr = unsigned long long;
using CUdevice = int;
using CUresult = int;
using CUcontext = struct Context*;
using CUmodule = struct Module*;
using CUlibrary = struct Module*;
using CUfunction = struct Function*;  // a CUkernel is passed as one too
using CUkernel = struct Function*;
using CUstream = struct Stream*;
using CUevent = struct Event*;
using CUgraph = struct Graph*;
using CUgraphExec = struct GraphExec*;
using CUhostFn = void (*)(void*);

// Results, plain integers so that they mix with what functions return.
constexpr CUresult kSuccess = 0;
constexpr CUresult kInvalidValue = 1;
constexpr CUresult kOutOfMemory = 2;
constexpr CUresult kNotInitialized = 3;
constexpr CUresult kDeinitialized = 4;
constexpr CUresult kNoDevice = 100;
constexpr CUresult kInvalidDevice = 101;
constexpr CUresult kInvalidContext = 201;
constexpr CUresult kInvalidHandle = 400;
constexpr CUresult kIllegalState = 401;
constexpr CUresult kNotFound = 500;
constexpr CUresult kNotReady = 600;
constexpr CUresult kIllegalAddress = 700;
constexpr CUresult kContextDestroyed = 709;
constexpr CUresult kHostNotRegistered = 713;
constexpr CUresult kNotPermitted = 800;
constexpr CUresult kNotSupported = 801;
constexpr CUresult kCaptureUnsupported = 900;
constexpr CUresult kCaptureInvalidated = 901;
constexpr CUresult kCaptureUnmatched = 903;
constexpr CUresult kCaptureIsolation = 905;
constexpr CUresult kCaptureImplicit = 906;
constexpr CUresult kCapturedEvent = 907;
constexpr CUresult kCaptureWrongThread = 908;

enum : int { kLocationDevice = 1, kLocationHost = 2, kLocationHostNuma = 3, kLocationHostNumaCurrent = 4 };

struct CUmemLocation {
  int type;
  int id;
};

struct CUuuid {
  char bytes[16];
};

struct CUlaunchConfig {
  unsigned int grid[3];
  unsigned int block[3];
  unsigned int shared_bytes;
  CUstream stream;
  void* attributes;
  unsigned int attribute_count;
};

// Keys of the `extra` argument of a launch.
#define LAUNCH_PARAM_BUFFER_POINTER (reinterpret_cast<void*>(1))
#define LAUNCH_PARAM_BUFFER_SIZE (reinterpret_cast<void*>(2))
#define LAUNCH_PARAM_END (static_cast<void*>(nullptr))

// Stream handles that name the default streams.
#define STREAM_LEGACY (reinterpret_cast<CUstream>(1))
#define STREAM_PER_THREAD (reinterpret_cast<CUstream>(2))

static_assert(sizeof(CUmemLocation) == 8, "passed in one register");
static_assert(sizeof(CUlaunchConfig) == 56, "as the driver lays it out");
