// SPDX-License-Identifier: Apache-2.0
#include <map>

#include "call.h"
#include "handles.h"
#include "modules.h"
#include "streams.h"

// Either holds every kernel there is, whatever image it was made of.
struct Module {
  bool is_library;
  Registry<Function> functions;
  std::map<std::string, CUfunction> by_name;
};

namespace {

std::mutex& lock() {
  static auto* one = new std::mutex;
  return *one;
}
std::map<std::string, std::shared_ptr<const Definition>>& definitions() {
  static auto* all = new std::map<std::string, std::shared_ptr<const Definition>>;
  return *all;
}
Registry<Module>& modules() {
  static auto* all = new Registry<Module>;
  return *all;
}
Registry<Function>& functions() {
  static auto* all = new Registry<Function>;
  return *all;
}

// The function of that name, the same handle each time.
CUresult get(CUmodule handle, const char* name, bool is_kernel, CUfunction* function) {
  auto module = modules().get(handle);
  if (!module || module->is_library != is_kernel) return kInvalidHandle;
  std::lock_guard<std::mutex> hold(lock());
  auto known = module->by_name.find(name);
  if (known != module->by_name.end()) return *function = known->second, kSuccess;
  auto found = definitions().find(name);
  if (found == definitions().end()) return kNotFound;
  auto made = std::make_shared<Function>();
  made->definition = found->second;
  made->is_kernel = is_kernel;
  made->module = handle;
  made->loaded = !values().lazy_loading;
  *function = module->by_name[name] = functions().add(made);
  return kSuccess;
}

CUresult open(CUmodule* handle, const void* image, bool is_library) {
  if (!image) return kInvalidValue;
  auto module = std::make_shared<Module>();
  module->is_library = is_library;
  *handle = modules().add(module);
  return kSuccess;
}

CUresult close(CUmodule handle) {
  auto module = modules().take(handle);
  if (!module) return kInvalidHandle;
  std::lock_guard<std::mutex> hold(lock());
  for (auto& [name, function] : module->by_name) functions().take(function);
  return kSuccess;
}

CUresult asked(CUfunction handle, bool is_kernel, std::shared_ptr<Function>* function) {
  *function = functions().get(handle);
  return *function && (*function)->is_kernel == is_kernel ? kSuccess : kInvalidHandle;
}

CUresult name_of(const char** name, CUfunction handle, bool is_kernel) {
  std::shared_ptr<Function> function;
  if (CUresult error = asked(handle, is_kernel, &function)) return error;
  *name = function->definition->name.c_str();
  return kSuccess;
}

CUresult param_of(CUfunction handle, bool is_kernel, size_t index, size_t* offset, size_t* size) {
  std::shared_ptr<Function> function;
  if (CUresult error = asked(handle, is_kernel, &function)) return error;
  const Definition& definition = *function->definition;
  if (index >= definition.sizes.size()) return kInvalidValue;
  *offset = definition.offsets[index];
  if (size) *size = definition.sizes[index];
  return kSuccess;
}

CUresult params_of(CUfunction handle, bool is_kernel, size_t* count) {
  std::shared_ptr<Function> function;
  if (CUresult error = asked(handle, is_kernel, &function)) return error;
  *count = function->definition->sizes.size();
  return kSuccess;
}

}  // namespace

std::shared_ptr<Function> function_of(CUfunction handle) { return functions().get(handle); }

CUresult load(Function& function) {
  if (function.loaded) return kSuccess;
  CUresult result = wait_for_device();
  function.loaded = true;
  return result;
}

extern "C" {

int fake_register_kernel(const char* name, fake_kernel run, const uint32_t* offsets, const uint32_t* sizes, uint32_t count) {
  auto made = std::make_shared<Definition>();
  made->name = name;
  made->run = run;
  made->offsets.assign(offsets, offsets + count);
  made->sizes.assign(sizes, sizes + count);
  std::lock_guard<std::mutex> hold(lock());
  definitions()[name] = made;
  return 0;
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return call("cuModuleLoadData", 19, 0, [&] { return open(module, image, false); });
}

CUresult cuModuleUnload(CUmodule module) {
  return call("cuModuleUnload", 22, 0, [&] { return close(module); });
}

CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  return call("cuModuleGetFunction", 23, 0, [&] { return get(module, name, false, function); });
}

CUresult cuModuleGetLoadingMode(int* mode) {
  return call("cuModuleGetLoadingMode", 673, kAnyTime, [&] {
    *mode = values().lazy_loading ? 2 : 1;
    return kSuccess;
  });
}

CUresult cuLibraryLoadData(CUlibrary* library, const void* code, void*, void**, unsigned, void*, void**, unsigned) {
  return call("cuLibraryLoadData", 678, kNoContext, [&] { return open(library, code, true); });
}

CUresult cuLibraryUnload(CUlibrary library) {
  return call("cuLibraryUnload", 680, kNoContext, [&] { return close(library); });
}

CUresult cuLibraryGetKernel(CUkernel* kernel, CUlibrary library, const char* name) {
  return call("cuLibraryGetKernel", 681, kNoContext, [&] { return get(library, name, true, kernel); });
}

CUresult cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
  return call("cuKernelGetFunction", 683, 0, [&] {
    std::shared_ptr<Function> from;
    if (CUresult error = asked(kernel, true, &from)) return error;
    if (CUresult error = load(*from)) return error;
    static auto* made = new std::map<CUkernel, CUfunction>;
    std::lock_guard<std::mutex> hold(lock());
    CUfunction& known = (*made)[kernel];
    if (!known) {
      auto plain = std::make_shared<Function>();
      plain->definition = from->definition;
      plain->module = from->module;
      plain->loaded = true;
      known = functions().add(plain);
    }
    *function = known;
    return kSuccess;
  });
}

CUresult cuFuncLoad(CUfunction handle) {
  return call("cuFuncLoad", 742, 0, &handle, nullptr, [&] {
    auto function = functions().get(handle);
    return function ? load(*function) : kInvalidHandle;
  });
}

CUresult cuFuncIsLoaded(int* state, CUfunction handle) {
  return call("cuFuncIsLoaded", 741, 0, [&] {
    auto function = functions().get(handle);
    if (!function) return kInvalidHandle;
    *state = function->loaded;
    return kSuccess;
  });
}

CUresult cuFuncGetModule(CUmodule* module, CUfunction handle) {
  return call("cuFuncGetModule", 566, 0, [&] {
    std::shared_ptr<Function> function;
    if (CUresult error = asked(handle, false, &function)) return error;
    *module = function->module;
    return kSuccess;
  });
}

CUresult cuFuncGetName(const char** name, CUfunction function) {
  return call("cuFuncGetName", 718, 0, [&] { return name_of(name, function, false); });
}

CUresult cuKernelGetName(const char** name, CUkernel kernel) {
  return call("cuKernelGetName", 719, 0, [&] { return name_of(name, kernel, true); });
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t* offset, size_t* size) {
  return call("cuFuncGetParamInfo", 733, 0, [&] { return param_of(function, false, index, offset, size); });
}

CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t* offset, size_t* size) {
  return call("cuKernelGetParamInfo", 734, 0, [&] { return param_of(kernel, true, index, offset, size); });
}

CUresult cuFuncGetParamCount(CUfunction function, size_t* count) {
  return call("cuFuncGetParamCount", 835, 0, [&] { return params_of(function, false, count); });
}

CUresult cuKernelGetParamCount(CUkernel kernel, size_t* count) {
  return call("cuKernelGetParamCount", 836, 0, [&] { return params_of(kernel, true, count); });
}

}  // extern "C"
