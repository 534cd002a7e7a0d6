cimport cython

cpdef dict union(dict left, dict right)
@cython.locals(merged=dict)
cdef dict _union(dict left, dict right)
cpdef dict difference(dict left, dict right)
@cython.locals(kept=dict, rest=dict)
cdef dict _difference(dict left, dict right)
cdef dict _normalize(dict kept)
cpdef dict remove_subtrees(dict given, dict gone)
@cython.locals(kept=dict, rest=dict, other=dict)
cdef dict _without(dict given, dict gone)
