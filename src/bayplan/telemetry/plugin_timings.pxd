cdef class PointTimings:
    cdef public dict _look_ups, _spreads, call_counts
    cpdef observe(self, str point, double seconds, str status=*)
    cpdef observe_skipped(self, str point)
    cpdef count(self, str plugin, str point, Py_ssize_t times=*)
