# A part of queue.pyx: how rows are written, as `relay._pure._texts`.

cdef int same_number(str name, list each, Py_ssize_t count) except -1:
    if len(each) != count:
        raise ValueError(f"{len(each)} {name} were given for {count} handles; give one for each")
    return 0


cdef inline list as_list(object each):
    return each if type(each) is list else list(each)


cdef int is_cache(object cache) except -1:
    if cache is not None and not isinstance(cache, IdCache):
        raise TypeError(f"cache must be an IdCache, got {type(cache).__name__}")
    return 0


cdef class Texts(Members):
    def write(self, handle, ids, split=-1):
        """Writes a pinned slot's input ids; their number becomes its cost."""
        if not self.arena.write_ids(handle, ids, split):
            return False
        self.count_for(to_int64("handle", handle))
        return True

    cdef void count_for(self, int64_t h) noexcept:
        cdef int32_t slot = state_slot(h), length = self.arena.s.length[slot]
        self.arena.s.cost[slot] = length if length > 0 else 1

    def write_all(self, cache, handles, rows, texts, whos, most=16384):
        """Writes what a tokenizer gave into several pinned slots, and keeps it in a cache."""
        cdef int64_t limit = as_range("most", most, 0, MOST_SIZE)
        cdef list slots = as_list(handles), made = as_list(rows), what = as_list(texts), names = as_list(whos)
        cdef Py_ssize_t n = len(slots), i
        cdef list lengths = [NOT_WRITTEN_] * n      # made before the first change
        is_cache(cache)
        same_number("rows", made, n)
        same_number("texts", what, n)
        same_number("whos", names, n)
        for i in range(n):
            lengths[i] = self.write_one(
                <IdCache>cache, to_int64("handle", slots[i]), made[i], what[i], names[i], limit
            )
        return lengths

    cdef int32_t write_one(
        self, IdCache cache, int64_t h, object row, object text, object who, int64_t limit
    ) except -1:
        cdef int32_t* ids = self.arena.scratch
        cdef int32_t n, split
        cdef int status
        if type(row) is not tuple or len(<tuple>row) != 2:
            return NOT_WRITTEN_
        try:
            split = to_int32("split", (<tuple>row)[1])
            n = ids_of((<tuple>row)[0], ids, self.arena.s.max_length)
        except Exception:
            return NOT_WRITTEN_
        if n > limit:
            return NOT_WRITTEN_
        status = arena_write_ids(&self.arena.s, h, ids, n, split)
        if status < -1:
            return NOT_WRITTEN_
        if cache is not None:
            cache.keep(text, who, ids, n, split)
        if status != 1:
            return NOT_WRITTEN_
        self.count_for(h)
        return n

    def fetch(self, cache, handle, text, who=None, tentative=False, most=16384):
        """Writes a pinned slot's input ids from a cache, as `IdCache.fetch`; their number becomes its cost."""
        cdef bint first = tentative
        cdef int64_t limit = as_range("most", most, 0, MOST_SIZE)
        is_cache(cache)
        if cache is None:
            raise TypeError("cache must be an IdCache, got NoneType")
        return self.fetch_one(<IdCache>cache, handle, text, who, first, limit)

    cdef int32_t fetch_one(
        self, IdCache cache, object handle, object text, object who, bint first, int64_t limit
    ) except -3:
        cdef int32_t length = cache.copy(self.arena, handle, text, who, first, limit)
        if length >= 0:
            self.count_for(to_int64("handle", handle))
        return length

    def fetch_all(self, cache, handles, texts, whos, tentative=False, most=16384):
        """As `fetch` for each of several, but that what cannot be in a cache is let through."""
        cdef bint first = tentative
        cdef int64_t limit = as_range("most", most, 0, MOST_SIZE)
        cdef list slots = as_list(handles), what = as_list(texts), names = as_list(whos)
        cdef Py_ssize_t n = len(slots), i
        cdef list lengths = [NOT_KEPT_] * n
        cdef set seen = set()
        cdef int32_t length
        is_cache(cache)
        same_number("texts", what, n)
        same_number("whos", names, n)
        if cache is None:
            return lengths
        for i in range(n):
            text, who = what[i], names[i]
            if not ids_are_kept(text, who):
                continue
            key = text if who is None else (text, who)
            if key in seen:     # all of these are plain: to compare them runs no code of others
                lengths[i] = SEEN_
                continue
            length = self.fetch_one(<IdCache>cache, slots[i], text, who, first, limit)
            lengths[i] = length
            if length < 0:
                seen.add(key)
        return lengths
