from bayplan.snapshot.snapshot cimport Snapshot as CSnapshot
cdef class Cycle:
    cdef public object info, pod, pre_filter_results, plugin_error, allowed_rows
    cdef public CSnapshot snapshot
    cdef public set skip_filter, skip_score, skip_pre_bind
    cdef public dict pods_to_activate
    cdef public dict _state
    cpdef put(self, object key, object value)
    cpdef find(self, object key)
    cpdef merge_state(self, Cycle other)
    cpdef merge_states(self, object sources)
    cpdef share_state(self, Cycle other)
    cpdef reset_state(self)
