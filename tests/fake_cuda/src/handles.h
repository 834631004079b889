// SPDX-License-Identifier: Apache-2.0
//
// Handles are addresses of objects that a registry keeps: any other value is found out, and an object lives on while
// work still uses it.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>

template <class T>
class Registry {
 public:
  explicit Registry(std::atomic<uint64_t>* gauge = nullptr) : gauge_(gauge) {}

  T* add(std::shared_ptr<T> object) {
    std::lock_guard<std::mutex> hold(lock_);
    T* handle = object.get();
    all_[handle] = std::move(object);
    if (gauge_) ++*gauge_;
    return handle;
  }

  std::shared_ptr<T> get(T* handle) {
    std::lock_guard<std::mutex> hold(lock_);
    auto at = all_.find(handle);
    return at == all_.end() ? nullptr : at->second;
  }

  std::shared_ptr<T> take(T* handle) {
    std::lock_guard<std::mutex> hold(lock_);
    auto at = all_.find(handle);
    if (at == all_.end()) return nullptr;
    std::shared_ptr<T> object = std::move(at->second);
    all_.erase(at);
    if (gauge_) --*gauge_;
    return object;
  }

  template <class F>
  void each(F visit) {
    std::lock_guard<std::mutex> hold(lock_);
    for (auto& [handle, object] : all_) visit(object);
  }

 private:
  std::mutex lock_;
  std::map<T*, std::shared_ptr<T>> all_;
  std::atomic<uint64_t>* gauge_;
};
