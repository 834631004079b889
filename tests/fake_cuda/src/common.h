// SPDX-License-Identifier: Apache-2.0
//
// Compiled once, ahead of the sources: they spend most of their time on these.
#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>
