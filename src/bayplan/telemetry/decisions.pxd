cdef class DecisionRing:
    cdef public Py_ssize_t _limit_bytes, _bytes, added
    cdef public object _records, _sizes
    cpdef add(self, object record)
