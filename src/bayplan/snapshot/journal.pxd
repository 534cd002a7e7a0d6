cdef class ChangeJournal:
    cdef public object _entries
    cdef public Py_ssize_t _start, _limit
    cdef readonly Py_ssize_t end
    cpdef append(self, Py_ssize_t number)
    cpdef Py_ssize_t single_since(self, Py_ssize_t cursor)
    cpdef object since(self, Py_ssize_t cursor)
