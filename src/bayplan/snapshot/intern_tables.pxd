cdef class NamespacedLabels:
    cdef public object namespace
    cdef public dict labels
    cdef public Py_hash_t _hash

cdef class InternTables:
    cdef public object resources, taints, features, kinds, affinities
