cdef class PodKind:
    cdef public object namespace
    cdef public dict labels
    cdef public Py_hash_t _hash

cdef class Vocabulary:
    cdef public object resources, taints, features, kinds, affinities
