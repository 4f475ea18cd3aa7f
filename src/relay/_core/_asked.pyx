# A part of queue.pyx: what is asked for with a batch, from the objects that it comes in.

cdef int read_line(Filling* b, object costs) except -1:
    cdef double line[4]
    cdef int i
    cdef list numbers
    if costs is None:
        return 0
    if type(costs) is tuple and len(costs) == 4:
        for i in range(4):
            cost = (<tuple>costs)[i]
            if not PyFloat_CheckExact(cost) or not 0.0 <= PyFloat_AS_DOUBLE(cost) < INFINITY:
                break
            line[i] = PyFloat_AS_DOUBLE(cost)
        else:
            b.base, b.item, b.unit, b.square = line[0], line[1], line[2], line[3]
            b.known = True
            b.sized = b.unit > 0.0 or b.square > 0.0
            return 0
    numbers = [float(cost) for cost in costs]
    for cost in numbers:
        if len(numbers) != 4 or not 0.0 <= <double>cost < INFINITY:
            break
    else:
        if len(numbers) == 4:
            return read_line(b, tuple(numbers))
    raise ValueError(f"costs must be 4 finite numbers of 0 or more, or None, got {numbers}")


cdef int read_places(Filling* b, object places) except -1:
    cdef int64_t lowest
    cdef int32_t most, n = 0
    for level, count in places:
        lowest = as_range("level", level, 0, LEVELS - 1)
        most = to_int32("most", count)
        if n < MAX_PLACES:
            b.lowest[n], b.at_most[n] = <int32_t>lowest, most
        n += 1
    if n > MAX_PLACES:
        raise ValueError(f"{n} limits of places are more than {MAX_PLACES}; give fewer")
    b.places = n
    return 0
