cdef class GroupScores:
    cdef public list scores
    cdef public object of_row
    cpdef object item(self, Py_ssize_t row)
    cpdef object over_all(self)
cdef class Weighted:
    cdef public object _vector
    cdef public long long flat
    cdef public GroupScores groups
