// SPDX-License-Identifier: Apache-2.0
//
// Copies and fills of any shape: rows of bytes. Pointers are checked when the call is made, as the driver does it.
#pragma once

#include <cstdint>
#include <vector>

#include "abi.h"

enum class Side { unknown, host, device };

struct Piece {
  uint64_t to, from, size;
};

// Where an address lies; pageable memory, which nobody told the driver of, is unknown.
Side side_of(uint64_t address);

// All pieces as one item of work.
CUresult copy_pieces(const std::vector<Piece>& pieces, CUstream stream, bool wait);

// `rows` rows of `count` words of `width` bytes, `pitch` bytes apart.
CUresult fill_rows(uint64_t to, uint64_t pitch, uint32_t value, unsigned width, uint64_t count, uint64_t rows,
                   CUstream stream, bool wait);
