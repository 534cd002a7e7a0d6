cdef class GroupScores:
    cdef public list scores
    cdef public object of_row
    cpdef object item(self, Py_ssize_t row)
    cpdef object all_rows(self)
cdef class WeightedScores:
    cdef public object _vector
    cdef public long long constant
    cdef public GroupScores groups
