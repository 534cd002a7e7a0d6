cdef class ListMergeRule:
    cdef public object item, defaults
    cdef public bint associative
    cdef public tuple keys

cdef class MapMergeRule:
    cdef public object declared, element
    cdef public bint atomic
    cdef public dict _fields, _steps
    cpdef dict fields(self)
    cpdef dict steps(self)

cdef class MergeRule:
    cdef public object scalar
    cdef public ListMergeRule list
    cdef public MapMergeRule map
