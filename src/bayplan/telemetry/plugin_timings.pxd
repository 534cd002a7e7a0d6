cdef class PointTimings:
    cdef public dict _look_ups, _spreads, asked
    cpdef took(self, str point, double seconds, str status=*)
    cpdef passed(self, str point)
    cpdef count(self, str plugin, str point, Py_ssize_t times=*)
