# A part of permits.pyx: leases that end without a beat.

cdef class Leases(Taking):
    def beat(self, token):
        """Note that the holder of `token` is alive."""
        cdef int64_t lease = self.own(token).lease
        cdef int64_t now_ns = self.now()
        if not arena_live(&self.a, lease):
            raise stale_token("beat for")
        if self.state_at(lease) != BUSY:
            raise TokenRevoked(
                "this token has been revoked: stop the work and release() it before its grace time is over"
            )
        self.a.ready_ns[state_slot(lease)] = now_ns

    def expire(self, stretch=1.0):
        """Revoke the leases that have missed their beat, and end those whose grace time is over."""
        cdef double factor = stretch, beats_ns
        cdef int64_t now_ns = self.now(), lease, due_ns
        cdef int32_t slot, n = 0, i = 0
        cdef list revoked = [], fenced = []
        cdef int32_t* slots = <int32_t*>calloc(self.leases.size + 1, sizeof(int32_t))
        if slots == NULL:
            raise MemoryError("no memory to look at the leases of a pool")
        try:
            slot = timers_due_one(&self.leases, now_ns)
            while slot >= 0:
                slots[n] = slot
                n += 1
                slot = timers_due_one(&self.leases, now_ns)
            while i < n:
                slot = slots[i]
                lease = arena_handle(&self.a, slot)
                beats_ns = <double>self.a.commit_ns[slot] * factor
                due_ns = self.a.ready_ns[slot]
                due_ns += <int64_t>beats_ns if beats_ns < <double>FOREVER_NS else FOREVER_NS
                if self.state_at(lease) != BUSY:
                    fenced.append(self.view(lease))
                    self.a.arrival_ns[slot] = FAILED
                    self.end(lease, now_ns)
                elif due_ns > now_ns:
                    timers_arm(&self.leases, slot, due_ns)
                else:
                    revoked.append(self.view(lease))
                    self.ask_back(lease, now_ns)
                i += 1
            self.serve(now_ns)
        finally:
            while i < n:    # there was no memory: they are looked at again
                timers_arm(&self.leases, slots[i], now_ns)
                self.armed = self.news = True
                i += 1
            free(slots)
            self.conclude()
        return revoked, fenced

    def revoke(self, token):
        """Ask a token back: its holder has the grace time to release it, and the lease ends then in any case."""
        cdef int64_t lease = self.own(token).lease
        cdef int64_t now_ns = self.now()
        cdef bint busy = arena_live(&self.a, lease) and self.state_at(lease) == BUSY
        if busy:
            self.ask_back(lease, now_ns)
        self.conclude()
        return busy

    def next_lease_ns(self):
        """When `expire` is to be called next, or None."""
        cdef int64_t next_ns = timers_next(&self.leases)
        self.conclude()
        return None if next_ns == INT64_MAX else next_ns
