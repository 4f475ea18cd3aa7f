# Event loops, and what stands for a coroutine without an `async def`: driven through the slots of its type,
# it costs no frame, and no exception for its result. A part of each module that has one.

cdef extern from *:
    """
    #ifndef _WIN32
    #include <pthread.h>
    #endif

    /* Whether this process is a child that has forked off since it was last asked. */
    static int relay_child = 0;
    static void relay_in_child(void) { relay_child = 1; }
    static inline int relay_has_forked(void) {
        int forked = relay_child;
        relay_child = 0;
        return forked;
    }
    static int relay_watch_forks(void) {
    #ifndef _WIN32
        return pthread_atfork(NULL, NULL, relay_in_child);
    #endif
        return 0;
    }

    static void relay_set_slots(PyObject* type, void* send, void* next) {
        ((PyTypeObject*)type)->tp_iternext = (iternextfunc)next;
        ((PyTypeObject*)type)->tp_as_async->am_send = (sendfunc)send;
        PyType_Modified((PyTypeObject*)type);
    }
    """
    int relay_has_forked()
    int relay_watch_forks()
    void relay_set_slots(PyObject* type, void* send, void* next)
    PyObject* PyThreadState_GetDict()
    PyObject* PyDict_GetItem(PyObject* mapping, object key)

cdef str LOOP_MARK = "__asyncio_running_event_loop__"
cdef tuple NO_LOOP = (object(), None)     # a mark that no thread has
cdef tuple last_loop = NO_LOOP          # its mark, and the loop: replaced whole


cdef object current_loop():
    # The loop that runs on this thread. asyncio asks for the process's number each time, which is a system call; but
    # what it notes in the state of the thread is another object whenever a loop begins to run.
    # In a child no loop runs, whatever is noted.
    global last_loop
    cdef tuple known
    if relay_has_forked():
        last_loop = NO_LOOP
    known = last_loop
    cdef PyObject* notes = PyThreadState_GetDict()
    cdef PyObject* mark = NULL
    if notes != NULL:
        mark = PyDict_GetItem(notes, LOOP_MARK)
    if mark != NULL and <object>mark is known[0]:
        return known[1]
    loop = the_running_loop()       # raises where none runs, whatever the mark
    if mark != NULL:
        last_loop = (<object>mark, loop)
    return loop


if relay_watch_forks():
    raise MemoryError("no memory to watch for forks")


cdef object thrown(tuple error):
    # The exception that a throw() means.
    if not error:
        raise TypeError("throw expected at least 1 argument, got 0")
    if len(error) > 3:
        raise TypeError(f"throw expected at most 3 arguments, got {len(error)}")
    kind = error[0]
    value = error[1] if len(error) > 1 else None
    if isinstance(kind, BaseException):
        if value is not None:
            raise TypeError("instance exception may not have a separate value")
        meant = kind
    elif not isinstance(kind, type) or not issubclass(kind, BaseException):
        raise TypeError(
            f"exceptions must be classes or instances deriving from BaseException, not {type(kind).__name__}"
        )
    elif isinstance(value, BaseException):
        meant = value
    else:
        meant = kind() if value is None else kind(*value) if isinstance(value, tuple) else kind(value)
    return meant.with_traceback(error[2]) if len(error) > 2 and error[2] is not None else meant
