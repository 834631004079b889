// SPDX-License-Identifier: Apache-2.0
//
// The one device's primary context, and which context is current in a thread.
#pragma once

#include "abi.h"

CUcontext current_context();
CUresult context_error();  // why a function that needs a context cannot run, or 0
