# A part of permits.pyx: what subclasses of `Permits` override. None of it is called in the middle of a change;
# `relay._pure` says what each is for.

cdef class Hooks:
    def _deliver(self, waiter):
        return True

    def _freed(self):
        pass

    def _lease_armed(self):
        pass

    def _leaked(self, token):
        pass

    def _wait(self, priority, timeout, cost, tenant, heartbeat, retry):
        raise NotImplementedError

    def _wait_async(self, priority, timeout, cost, tenant, heartbeat, retry):
        raise NotImplementedError

    def _limit_ns(self, timeout):
        raise NotImplementedError

    def _beats_ns(self, heartbeat):
        raise NotImplementedError

    def _join(self, waiter, priority, cost, tenant, heartbeat_ns, arrival_ns):
        token = self.acquire_or_join(priority, None, waiter, cost, tenant, heartbeat_ns, arrival_ns)
        if waiter.index == NO_PLACE_:
            self._refuse(check_priority(priority), cost)
        return token

    def _get_ready(self):
        self.ready = True

    def _arm(self, waiter, limit_ns):
        raise NotImplementedError

    def _left(self, waiter):
        raise NotImplementedError

    def _refuse(self, priority, cost):
        raise NotImplementedError

    def _empty_handed(self, priority, timeout):
        raise NotImplementedError

    def _trace(self, token):
        pass

    def _nudge(self):
        pass
