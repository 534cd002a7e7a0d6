from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot
cdef class Cycle:
    cdef public object info, pod, answered, failed, within
    cdef public CSnapshot snapshot
    cdef public set skip_filter, skip_score, skip_pre_bind
    cdef public dict pods_to_activate
    cdef public dict _state
    cpdef put(self, object key, object value)
    cpdef find(self, object key)
    cpdef adopt(self, Cycle other)
    cpdef adopt_all(self, object others)
    cpdef share(self, Cycle other)
    cpdef start_over(self)
