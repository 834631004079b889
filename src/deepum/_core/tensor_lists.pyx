# SPDX-License-Identifier: Apache-2.0
# cython: language_level=3
"""Which words of a multi-tensor kernel's parameter are tensors, and which are left over.

PyTorch's foreach operations, and so its optimizers, hand a kernel up to 32 KB by value: lists of
addresses with room for hundreds, and for each thread block the place of its tensor in them. A
launch fills what it needs; behind that lies what the launches before it left, or the stack. To take
every word for a tensor takes long, and names memory that the kernel does not touch.

DESIGN: the struct is known by the kernel's name and by its size, as PyTorch's MultiTensorApply.cuh
declares it (a test reads the one that is installed). What it holds is checked at each launch:
thread blocks work on tensor 0, then on it or the next one, none of them empty. Where anything is
otherwise, every word is scanned as usual: naming too much costs time, naming too little would cost
the program its data.
"""

from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset, strlen, strstr

cdef enum:
    CONFIGURATIONS = 2         # parameters of up to 4 KB, and of up to 32 KB

# Room for tensors by the number of lists, and for thread blocks.
cdef uint32_t[CONFIGURATIONS][5] _PLAIN = [
    [110, 64, 48, 36, 30], [770, 448, 336, 252, 210]]
cdef uint32_t[CONFIGURATIONS][5] _WITH_SCALARS = [
    [96, 64, 48, 36, 30], [672, 448, 336, 252, 210]]
cdef uint32_t[CONFIGURATIONS][2] _WITH_WIDE_SCALARS = [[72, 60], [504, 420]]  # 16 bytes each
cdef uint32_t[CONFIGURATIONS] _BLOCKS = [320, 2240]
cdef uint32_t[CONFIGURATIONS] _WIDTHS = [1, 2]

cdef enum:
    FUSED = 0                  # with step counts
    SCALARS = 1
    PLAIN = 2
    KINDS = 3

# As they stand in mangled names; one is the end of another.
cdef const char* _STRUCTS[KINDS]
_STRUCTS[FUSED] = b"FusedOptimizerTensorListMetadataI"
_STRUCTS[SCALARS] = b"TensorListScalarListMetadataI"
_STRUCTS[PLAIN] = b"TensorListMetadataI"


cdef uint32_t up(uint32_t size, uint32_t to) noexcept nogil:
    return (size + to - 1) // to * to


cdef uint32_t lay_out(
    TensorLists* at, uint32_t kind, uint32_t lists, uint32_t configuration, uint32_t scalar
) noexcept nogil:
    # Lay the struct out as a compiler does; returns its size.
    cdef uint32_t room = _PLAIN[configuration][lists - 1], end
    if kind == SCALARS:
        room = _WITH_SCALARS[configuration][lists - 1]
        if scalar == 16 and lists <= 2:
            room = _WITH_WIDE_SCALARS[configuration][lists - 1]
    memset(at, 0, sizeof(at[0]))
    at.lists = lists
    at.room = room
    at.sizes = lists * room * 8
    end = at.sizes + room * 8
    if kind == FUSED:
        at.steps = end
        end += room * 8
    elif kind == SCALARS:
        end = up(end, scalar) + room * scalar
    at.blocks = end
    at.block_room = _BLOCKS[configuration]
    at.width = _WIDTHS[configuration]
    end = up(end + at.block_room * at.width, 4) + at.block_room * 4
    if kind != SCALARS:
        end += 4               # the first tensor's number in the whole list
    return up(end, 16 if scalar == 16 else 8)


cdef TensorLists find_lists(const char* name, uint32_t size) noexcept nogil:
    # The layout of a kernel's first parameter, by the kernel's mangled name; `lists` is 0 if it is
    # not known.
    cdef TensorLists found
    cdef const char* place = NULL
    cdef const char* begins
    cdef uint32_t kind, configuration, scalar = 0
    memset(&found, 0, sizeof(found))
    if strstr(name, "multi_tensor_apply_kernel") == NULL:
        return found
    for kind in range(KINDS):
        begins = strstr(name, _STRUCTS[kind])
        if begins != NULL:
            begins += strlen(_STRUCTS[kind])
            place = strstr(begins, "Li")       # the number of lists
            break
    if place == NULL or place[2] < c"1" or place[2] > c"5" or place[3] != c"E":
        return found
    if kind == SCALARS:
        scalar = size_of(begins, place - begins)
        if not scalar:
            return found
    for configuration in range(CONFIGURATIONS):
        if lay_out(&found, kind, place[2] - c"0", configuration, scalar) == size:
            return found
    memset(&found, 0, sizeof(found))
    return found


cdef uint32_t size_of(const char* type, size_t length) noexcept nogil:
    # The size of a mangled type of a scalar; 0 if it is another one.
    if length == 1 and type[0] in (c"f", c"i"):
        return 4
    if length == 1 and type[0] in (c"d", c"l"):
        return 8
    if length == 17 and memcmp(type, b"N3c107complexIfEE", 17) == 0:
        return 8
    if length == 17 and memcmp(type, b"N3c107complexIdEE", 17) == 0:
        return 16
    return 0


cdef uint32_t tensors_used(
    const TensorLists* at, const char* data, const uint32_t* grid
) noexcept nogil:
    # How many tensors of each list a launch works on; 0 if what is there cannot be.
    cdef uint32_t i, tensor, last = 0
    cdef uint16_t wide
    cdef int64_t elements
    if grid[1] != 1 or grid[2] != 1 or not 0 < grid[0] <= at.block_room:
        return 0
    for i in range(grid[0]):
        if at.width == 1:
            tensor = (<const uint8_t*>data)[at.blocks + i]
        else:
            memcpy(&wide, data + at.blocks + 2 * i, 2)
            tensor = wide
        if tensor != last and (i == 0 or tensor != last + 1):
            return 0
        last = tensor
    if last >= at.room:
        return 0
    for i in range(last + 1):
        memcpy(&elements, data + at.sizes + 8 * i, 8)
        if elements <= 0:
            return 0
    return last + 1


cdef uint32_t scan_lists(
    const TensorLists* at, const char* data, uint32_t used, uint64_t low, uint64_t span,
    uint64_t* pointers
) noexcept nogil:
    # The addresses of so many tensors of each list that may point into managed memory.
    cdef uint32_t count = 0, i
    for i in range(at.lists):
        count = scan(data + i * at.room * 8, used * 8, low, span, pointers, count)
    if at.steps:
        count = scan(data + at.steps, used * 8, low, span, pointers, count)
    return count


def layout(str name, uint32_t size):
    """Return the layout of a kernel's first parameter, a dict; None if it is not known."""
    cdef bytes encoded = name.encode()
    cdef TensorLists found = find_lists(encoded, size)
    return <dict>found if found.lists else None


def addresses(str name, bytes data, tuple grid, uint64_t low, uint64_t high):
    """Return what a launch is found to name in its first parameter; None if all is to be scanned.

    Parameters
    ----------
    name : str
        The kernel's mangled name.
    data : bytes
        The parameter.
    grid : tuple
        Thread blocks along x, y and z.
    low, high : int
        Bounds of managed memory.
    """
    cdef bytes encoded = name.encode()
    cdef TensorLists found = find_lists(encoded, <uint32_t>len(data))
    cdef uint32_t[3] shape = grid
    cdef uint64_t[MAX_POINTERS] pointers
    cdef const char* start = data
    cdef uint32_t used, count
    if not found.lists:
        return None
    used = tensors_used(&found, start, shape)
    if not used:
        return None
    count = scan_lists(&found, start, used, low, high - low, pointers)
    return [pointers[i] for i in range(count)]
