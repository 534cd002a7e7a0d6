cdef class ListRule:
    cdef public object item, defaults
    cdef public bint associative
    cdef public tuple keys

cdef class MapRule:
    cdef public object declared, element
    cdef public bint atomic
    cdef public dict _fields, _steps
    cpdef dict fields(self)
    cpdef dict steps(self)

cdef class Rule:
    cdef public object scalar
    cdef public ListRule list
    cdef public MapRule map
