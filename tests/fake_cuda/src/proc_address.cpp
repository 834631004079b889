// SPDX-License-Identifier: Apache-2.0
#include "abi.h"

CUresult proc_address(const char* name, void** function, int version, uint64_t flags, int* status);

extern "C" {

CUresult cuGetProcAddress_v2(const char* name, void** function, int version, uint64_t flags, int* status) {
  return proc_address(name, function, version, flags, status);
}

CUresult cuGetProcAddress(const char* name, void** function, int version, uint64_t flags) {
  return proc_address(name, function, version, flags, nullptr);
}

}  // extern "C"
