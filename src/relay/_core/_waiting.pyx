# A part of tickets.pyx: where tasks wait for answers, and how they are given them, as `relay._pure.tickets`.

@freelist(64)
cdef class Waiting:
    def get_loop(self):
        return self.loop

    def done(self):
        return self.over

    def cancelled(self):
        return self.given_up

    def result(self):
        if not self.over:
            raise InvalidStateError("Result is not set.")
        if self.given_up:
            raise CancelledError() if self.value is None else CancelledError(self.value)
        return self.value

    def set_result(self, value):
        if self.over:
            raise InvalidStateError("invalid state")
        self.value = value
        self.end_later()

    def add_done_callback(self, callback, *, context=None):
        if context is None:
            context = PyContext_CopyCurrent()
        if self.over:
            self.loop.call_soon(callback, self, context=context)
        elif self.callback is None:
            self.callback, self.context = callback, context
        else:
            if self.more is None:
                self.more = []
            self.more.append((callback, context))

    def remove_done_callback(self, callback):
        cdef list kept, pairs = self.take()
        kept = [pair for pair in pairs if pair[0] != callback]
        for left, context in kept:
            self.add_done_callback(left, context=context)
        return len(pairs) - len(kept)

    def cancel(self, msg=None):
        if self.over:
            return False
        self.given_up, self.value = True, msg
        self.end_later()
        return True

    cdef list take(self):
        cdef list pairs = [] if self.callback is None else [(self.callback, self.context)]
        if self.more is not None:
            pairs += self.more
        self.callback = self.context = self.more = None
        return pairs

    cdef int end_later(self) except -1:
        self.over = True
        for callback, context in self.take():
            self.loop.call_soon(callback, self, context=context)
        return 0

    cdef int end_now(self) except -1:
        cdef object callback = self.callback, context = self.context
        if self.over:
            return 0
        if callback is None or self.more is not None:
            return self.end_later()
        try:
            PyContext_Enter(context)
        except RuntimeError:        # it is entered already, by a loop that runs within a loop
            return self.end_later()
        self.over = True
        self.callback = self.context = None
        try:
            callback(self)
        finally:
            PyContext_Exit(context)
        return 0


def finish(pairs):
    conclude(pairs)


cdef int conclude(list pairs) except -1:
    # On the loop. A task that is none other's step runs at once, in the order of the answers.
    cdef TicketBase ticket
    cdef Waiting waits
    cdef Py_ssize_t index = 0
    cdef bint at_once = False
    for waiter in pairs:
        index += 1
        if type(waiter) is Asking:
            waits = (<Asking>waiter).waits
            if waits is None:
                continue
            if not at_once:
                if current_task(waits.loop) is not None:
                    waits.loop.call_soon(finish, pairs[index - 1:])
                    return 0
                at_once = True
            try:
                waits.end_now()
            except BaseException:
                if index < len(pairs):
                    waits.loop.call_soon(finish, pairs[index:])
                raise
            continue
        future, ticket = waiter
        if not future.done():
            if ticket._error is None:
                future.set_result(ticket._value)
            else:
                future.set_exception(ticket._error)
    return 0
