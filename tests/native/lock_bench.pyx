# cython: language_level=3
"""What guards a heap best. In the build folder, on a quiet machine: python -c "import lock_bench; lock_bench.run()"."""

from libc.stdint cimport int32_t, int64_t

from relay._core.heap cimport Heap, heap_free, heap_init, heap_pop, heap_push


cdef extern from "lock_bench.hpp" nogil:
    cppclass Ops:
        void* heap
        void (*push)(void*, int64_t, int32_t) noexcept nogil
        int32_t (*pop)(void*) noexcept nogil
    void lock_bench(const Ops& ops, int threads, double seconds, int rounds)


cdef void push(void* heap, int64_t key, int32_t slot) noexcept nogil:
    heap_push(<Heap*>heap, key, slot)


cdef int32_t pop(void* heap) noexcept nogil:
    return heap_pop(<Heap*>heap)


def run(int threads=8, double seconds=0.5, int rounds=9):
    cdef Heap heap
    cdef Ops ops
    assert heap_init(&heap, 4096) == 0
    ops.heap = &heap
    ops.push = push
    ops.pop = pop
    with nogil:
        lock_bench(ops, threads, seconds, rounds)
    heap_free(&heap)
