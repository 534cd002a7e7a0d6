cdef class PodColumns:
    cdef public object vocabulary
    cdef public Py_ssize_t slots, version, affinity_version
    cdef public list infos, _log
    cdef public object rows, kinds, affinities, terminating, _selectors
    cdef public dict claim_users, affinity_users
    cpdef set_slot(self, Py_ssize_t slot, object info, Py_ssize_t row, Py_ssize_t kind, Py_ssize_t affinity)
    cpdef bint holds(self, Py_ssize_t slot)
    cpdef clear_slot(self, Py_ssize_t slot)
    cpdef copy_slot(self, Py_ssize_t slot, object info, Py_ssize_t row, Py_ssize_t kind, Py_ssize_t affinity)
    cdef _append_change(self, object info, Py_ssize_t row, long long delta)
    cpdef list changes_since(self, Py_ssize_t cursor)
