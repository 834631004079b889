// SPDX-License-Identifier: Apache-2.0
//
// The kernels that are always there. Each touches exactly what it reads and writes.
#include <cstddef>
#include <cstring>

#include "fake.h"

namespace {

template <class T>
const T* reads(uint64_t address, uint64_t count) {
  return count && fake_touch(address, count * sizeof(T), FAKE_READ) ? reinterpret_cast<const T*>(address) : nullptr;
}

template <class T>
T* writes(uint64_t address, uint64_t count) {
  return count && fake_touch(address, count * sizeof(T), FAKE_WRITE) ? reinterpret_cast<T*>(address) : nullptr;
}

struct Fill {
  uint64_t to, count;
  uint32_t value;
};
void fill(const Fill& p) {
  if (auto* to = writes<uint32_t>(p.to, p.count))
    for (uint64_t i = 0; i < p.count; i++) to[i] = p.value;
}

struct Copy {
  uint64_t to, from, count;
};
void copy(const Copy& p) {
  auto* from = reads<uint32_t>(p.from, p.count);
  auto* to = from ? writes<uint32_t>(p.to, p.count) : nullptr;
  if (to) memmove(to, from, p.count * sizeof *to);
}

// y += a x
struct Axpy {
  uint64_t y, x, count;
  uint32_t a;
};
void axpy(const Axpy& p) {
  auto* x = reads<uint32_t>(p.x, p.count);
  auto* old = x ? reads<uint32_t>(p.y, p.count) : nullptr;
  auto* y = old ? writes<uint32_t>(p.y, p.count) : nullptr;
  for (uint64_t i = 0; y && i < p.count; i++) y[i] += p.a * x[i];
}

// One 64-bit sum
struct Reduce {
  uint64_t to, from, count;
};
void reduce(const Reduce& p) {
  auto* from = reads<uint32_t>(p.from, p.count);
  auto* to = from ? writes<uint64_t>(p.to, 1) : nullptr;
  if (!to) return;
  uint64_t sum = 0;
  for (uint64_t i = 0; i < p.count; i++) sum += from[i];
  *to = sum;
}

// Adds to `each` words behind every pointer of a struct that is passed by value, as multi-tensor kernels do it.
struct Many {
  uint32_t add, used;
  uint64_t each;
  uint64_t pointers[32];
};
struct AddMany {
  Many many;
  uint32_t last;  // so that something lies behind the struct
};
void add_many(const AddMany& p) {
  for (uint32_t k = 0; k < p.many.used && k < 32; k++) {
    auto* old = reads<uint32_t>(p.many.pointers[k], p.many.each);
    auto* to = old ? writes<uint32_t>(p.many.pointers[k], p.many.each) : nullptr;
    for (uint64_t i = 0; to && i < p.many.each; i++) to[i] += p.many.add + p.last;
  }
}

// y += x for pairs of tensors, as PyTorch's foreach kernels take them: what no thread block works on is left over.
struct Lists {
  uint64_t addresses[2][64];
  int64_t numel[64];
  uint8_t block_to_tensor[320];
  int32_t block_to_chunk[320];
  int32_t start;
};
void add_lists(const unsigned char* params, const fake_launch* launch) {
  Lists lists;
  memcpy(&lists, params, sizeof lists);
  for (unsigned block = 0; block < launch->grid[0]; block++) {
    const unsigned k = lists.block_to_tensor[block];
    const uint64_t first = uint64_t(lists.block_to_chunk[block]) * 65536, end = uint64_t(lists.numel[k]);
    const uint64_t count = end - first < 65536 ? end - first : 65536;
    axpy({lists.addresses[0][k] + 4 * first, lists.addresses[1][k] + 4 * first, count, 1});
  }
}

// to[i] = table[index[i]]: only the rows named are touched.
struct Gather {
  uint64_t to, table, index, count;
};
void gather(const Gather& p) {
  auto* index = reads<uint32_t>(p.index, p.count);
  auto* to = index ? writes<uint32_t>(p.to, p.count) : nullptr;
  for (uint64_t i = 0; to && i < p.count; i++) {
    auto* row = reads<uint32_t>(p.table + uint64_t(index[i]) * 4, 1);
    if (!row) return;
    to[i] = *row;
  }
}

// What deepum.cuda.digest says; the first thread block does it all.
struct Digest {
  uint64_t words, pairs, sums;
};
void digest(const unsigned char* params, const fake_launch* launch) {
  Digest p;
  memcpy(&p, params, sizeof p);
  auto* words = reads<uint64_t>(p.words, 2 * p.pairs);
  uint64_t sums[2] = {0, 0};
  for (uint64_t i = 0; words && i < 2 * p.pairs; i++) {
    uint64_t x = words[i] + (i + 1) * 0x9E3779B97F4A7C15, y = words[i] ^ (i + 1) * 0xD6E8FEB86659FD93;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    sums[0] += x ^ x >> 31;
    y = (y ^ y >> 32) * 0xD6E8FEB86659FD93;
    y = (y ^ y >> 32) * 0xD6E8FEB86659FD93;
    sums[1] += y ^ y >> 32;
  }
  auto* to = words || !p.pairs ? writes<uint64_t>(p.sums, 2 * launch->grid[0]) : nullptr;
  for (unsigned i = 0; to && i < 2 * launch->grid[0]; i++) to[i] = i < 2 ? sums[i] : 0;
}

// No pointer at all
void nothing(const uint32_t&) {}

template <class P, void (*body)(const P&)>
void run(const unsigned char* params, const fake_launch*) {
  P copied;
  memcpy(&copied, params, sizeof copied);
  body(copied);
}

template <class P, void (*body)(const P&), size_t n>
void add(const char* name, const uint32_t (&offsets)[n], const uint32_t (&sizes)[n]) {
  fake_register_kernel(name, run<P, body>, offsets, sizes, n);
}

struct Register {
  Register() {
    add<Fill, fill>("fill", {0, 8, 16}, {8, 8, 4});
    add<Copy, copy>("copy", {0, 8, 16}, {8, 8, 8});
    add<Axpy, axpy>("axpy", {0, 8, 16, 24}, {8, 8, 8, 4});
    add<Reduce, reduce>("reduce", {0, 8, 16}, {8, 8, 8});
    add<AddMany, add_many>("add_many", {0, offsetof(AddMany, last)}, {sizeof(Many), 4});
    const uint32_t at[] = {0}, size[] = {sizeof(Lists)};
    fake_register_kernel(
        "_ZN2at6native25multi_tensor_apply_kernelINS0_18TensorListMetadataILi2EEEJEEEvT_", add_lists, at, size, 1);
    const uint32_t three[] = {0, 8, 16}, eights[] = {8, 8, 8};
    fake_register_kernel("deepum_digest", digest, three, eights, 3);
    add<Gather, gather>("gather", {0, 8, 16, 24}, {8, 8, 8, 8});
    add<uint32_t, nothing>("nothing", {0}, {4});
  }
} at_load;

}  // namespace
