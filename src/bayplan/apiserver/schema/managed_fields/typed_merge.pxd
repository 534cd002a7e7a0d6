cimport cython
from bayplan.apiserver.schema.managed_fields.merge_rules cimport ListRule as CListRule
from bayplan.apiserver.schema.managed_fields.merge_rules cimport MapRule as CMapRule
from bayplan.apiserver.schema.managed_fields.merge_rules cimport Rule as CRule

@cython.locals(fields=CMapRule, listed=CListRule)
cdef object _compare(object old, object new, CRule rule, dict gone, dict other, dict come)
cdef bint _lists(object old, object new)
@cython.locals(fields=dict, key=str)
cdef object _compare_maps(dict old, dict new, CMapRule rule, dict gone, dict other, dict come)
@cython.locals(mine=dict, theirs=dict, step=str, values=list, before=list)
cdef object _compare_lists(list old, list new, CListRule rule, dict gone, dict other, dict come)
cdef object _compare_twins(list before, list after, str step, CRule rule, dict gone, dict other, dict come)
@cython.locals(left=dict, changed=dict, found=dict)
cdef object _step(object mine, object value, str step, CRule rule, dict gone, dict other, dict come)
@cython.locals(below=CMapRule, listed=CListRule, steps=dict, known=tuple, found=dict, step=str, key=str)
cpdef dict added(object value, CRule rule)
@cython.locals(found=dict, step=str)
cdef dict _indexed(list values, CListRule rule)
@cython.locals(keys=tuple)
cpdef str element_step(object each, CListRule rule)
