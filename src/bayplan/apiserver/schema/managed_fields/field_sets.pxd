cimport cython

cpdef dict union(dict left, dict right)
@cython.locals(merged=dict)
cdef dict _union(dict left, dict right)
cpdef dict difference(dict left, dict right)
@cython.locals(remaining=dict, rest=dict)
cdef dict _difference(dict left, dict right)
cdef dict _normalize(dict fields)
cpdef dict remove_subtrees(dict given, dict removed)
@cython.locals(remaining=dict, rest=dict, other=dict)
cdef dict _remove_subtrees(dict given, dict removed)
