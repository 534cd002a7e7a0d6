cimport cython

cdef class Reader:
    cdef public object _type
    cdef public dict _fields
    cdef public list _always
    @cython.locals(fields=dict, out=dict, known=tuple, reader=Reader)
    cpdef dict read(self, object value)
    @cython.locals(fields=dict, out=dict, reader=Reader, before=object)
    cpdef dict again(self, object value, object known)
    cpdef dict zero(self)
    cpdef dict _compile(self)
