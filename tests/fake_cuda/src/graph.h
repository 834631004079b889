// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "streams.h"

CUgraph add_graph(std::vector<Item> items);
