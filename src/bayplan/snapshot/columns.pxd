cimport cython

cdef class NodeColumns:
    cdef public object vocabulary, labels, pods
    cdef public Py_ssize_t count, images_version
    cdef public list nodes, names, ports, images
    cdef public dict index, port_rows, _image_rows, _image_columns
    cdef long long[:, :] _cells
    cdef public object _amounts, _usage, nonzero, pod_count, requested, allocatable
    cdef public object unschedulable, taint_ids, feature_ids
    cdef public bint all_small
    cdef public object _upper_bound
    cpdef add_pod(self, Py_ssize_t row, object info)
    @cython.locals(amount_tuple=tuple, index=Py_ssize_t)
    cpdef count_pod(self, Py_ssize_t row, object info)
    cpdef set_pod(self, Py_ssize_t row, object info)
    cpdef bytes amounts_key(self, Py_ssize_t row)
