# cython: language_level=3
"""Tables that are broken on purpose, to show that `dedup_check` sees it: Python cannot reach into the native struct."""

from relay._core.dedup cimport DedupTable, dedup_check, dedup_free, dedup_init, dedup_insert


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
