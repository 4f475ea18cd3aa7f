# cython: language_level=3, cdivision=True, boundscheck=False, wraparound=False, initializedcheck=False
# A digest of 128 bits: two words here, an int for Python. There is no _digest.pyx: all of it is inlined into the parts
# whose face takes or gives one. Needs the GIL; runs no code but Python's own.

from cpython.long cimport PyLong_Check
from libc.stdint cimport uint64_t

cdef extern from *:
    """
    /* Nearly every hash is an int of five 30-bit digits; to fill and read those directly halves the cost of a call. */
    #if PYLONG_BITS_IN_DIGIT == 30 && PY_VERSION_HEX < 0x030C0000
    #define relay_digits(value) (((PyLongObject*)(value))->ob_digit)
    #define relay_has_five(value) (Py_SIZE(value) == 5)
    #elif PYLONG_BITS_IN_DIGIT == 30 && PY_VERSION_HEX < 0x030E0000
    #define relay_digits(value) (((PyLongObject*)(value))->long_value.ob_digit)
    #define relay_has_five(value) (((PyLongObject*)(value))->long_value.lv_tag == (5u << 3))
    #endif
    static inline PyObject* relay_int_from_words(uint64_t lo, uint64_t hi) {
    #ifdef relay_digits
        if (hi >> 56) {
            PyLongObject* value = _PyLong_New(5);
            uint64_t five[5] = {lo, lo >> 30, lo >> 60 | hi << 4, hi >> 26, hi >> 56};
            for (int i = 0; value && i < 5; i++) relay_digits(value)[i] = (digit)(five[i] & PyLong_MASK);
            return (PyObject*)value;
        }
    #endif
        unsigned char bytes[16];
        for (int i = 0; i < 16; i++) bytes[i] = (unsigned char)((i < 8 ? lo : hi) >> 8 * (i & 7));
    #if PY_VERSION_HEX >= 0x030D0000
        return PyLong_FromUnsignedNativeBytes(bytes, 16, Py_ASNATIVEBYTES_LITTLE_ENDIAN);
    #else
        return _PyLong_FromByteArray(bytes, 16, 1, 0);
    #endif
    }
    /* 1: filled. 0: negative or too wide, and no error is set. */
    static inline int relay_words_from_int(PyObject* value, uint64_t* lo, uint64_t* hi) {
    #ifdef relay_digits
        if (relay_has_five(value)) {
            const digit* d = relay_digits(value);
            *lo = d[0] | (uint64_t)d[1] << 30 | (uint64_t)d[2] << 60;
            *hi = d[2] >> 4 | (uint64_t)d[3] << 26 | (uint64_t)d[4] << 56;
            return d[4] < 256;
        }
    #endif
        unsigned char bytes[16];
    #if PY_VERSION_HEX >= 0x030D0000
        Py_ssize_t need = PyLong_AsNativeBytes(value, bytes, 16, Py_ASNATIVEBYTES_LITTLE_ENDIAN
                                               | Py_ASNATIVEBYTES_UNSIGNED_BUFFER | Py_ASNATIVEBYTES_REJECT_NEGATIVE);
        int fits = need >= 0 && need <= 16;
    #else
        int fits = _PyLong_AsByteArray((PyLongObject*)value, bytes, 16, 1, 0) == 0;
    #endif
        if (!fits) { PyErr_Clear(); return 0; }
        *lo = *hi = 0;
        for (int i = 15; i >= 0; i--) { uint64_t* word = i < 8 ? lo : hi; *word = *word << 8 | bytes[i]; }
        return 1;
    }
    """
    object relay_int_from_words(uint64_t lo, uint64_t hi)
    bint relay_words_from_int(object value, uint64_t* lo, uint64_t* hi) noexcept


cdef inline int words_of(str name, object value, uint64_t* lo, uint64_t* hi) except -1:
    if not PyLong_Check(value):
        raise TypeError(f"{name} must be an int, got {type(value).__name__}")
    if not relay_words_from_int(value, lo, hi):
        raise OverflowError(f"{name} {value} does not fit in 128 bits without a sign")
    return 0
