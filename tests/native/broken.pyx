# cython: language_level=3
"""Tables that are broken on purpose, to show that `dedup_check` and `shelf_check` see it: Python cannot reach into the
native structs."""

from libc.stdint cimport int32_t

from relay._core._shelf cimport SHELF_MAIN, SHELF_SMALL, Shelf, shelf_append, shelf_check, shelf_free, shelf_init
from relay._core.dedup cimport DedupTable, dedup_check, dedup_delete, dedup_free, dedup_init, dedup_insert


def dedup_checks():
    """What dedup_check answers for tables that are broken in one place each, and for a whole one first."""
    cdef DedupTable d
    cdef int part
    answers = []
    for part in range(6):
        assert dedup_init(&d, 4) == 0
        assert dedup_insert(&d, 7, 1, 0) == 1 and dedup_insert(&d, 7, 2, 1) == 1    # cells 7 and 0, of 8
        if part == 1:
            d.cells[7].slot = 5
        elif part == 2:
            d.entries[1].lo = 6
        elif part == 3:
            d.cells[1] = d.cells[0]
            d.cells[0].slot = 0
        elif part == 4:
            d.count = 1
        elif part == 5:
            d.entries[2].handle = 2
        answers.append(dedup_check(&d))
        dedup_free(&d)
    return answers


def shelf_checks():
    """What shelf_check answers for shelves that are broken in one place each, and for a whole one first."""
    cdef Shelf t
    cdef int part
    cdef int32_t slot
    answers = []
    for part in range(9):
        assert shelf_init(&t, 4, 1000) == 0
        for slot in range(3):
            assert dedup_insert(&t.digests, 7, slot, slot) == 1
            t.entries[slot].cost = 10
            shelf_append(&t, SHELF_MAIN if slot else SHELF_SMALL, slot)
        t.free_slot = 3
        if part == 1:
            t.entries[2].newer = 1      # round and round
        elif part == 2:
            t.entries[0].where = SHELF_MAIN
        elif part == 3:
            t.free_slot = -1
        elif part == 4:
            t.lines[SHELF_MAIN].newest = 1
        elif part == 5:
            t.entries[1].cost = 11
        elif part == 6:
            t.max_bytes = 29
        elif part == 7:
            dedup_delete(&t.digests, 2)
        elif part == 8:
            t.entries[1].hits = 4
        answers.append(shelf_check(&t))
        shelf_free(&t)
    return answers
