cimport cython

cdef class ObjectReader:
    cdef public object _type
    cdef public dict _fields
    cdef public list _always
    @cython.locals(fields=dict, out=dict, known=tuple, reader=ObjectReader)
    cpdef dict read(self, object value)
    @cython.locals(fields=dict, out=dict, reader=ObjectReader, before=object)
    cpdef dict read_changed(self, object value, object known)
    cpdef dict zero(self)
    cpdef dict _compile(self)
