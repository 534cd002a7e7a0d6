cimport cython
from bayplan.apiserver.schema.managed_fields.merge_rules cimport ListMergeRule as CListMergeRule
from bayplan.apiserver.schema.managed_fields.merge_rules cimport MapMergeRule as CMapMergeRule
from bayplan.apiserver.schema.managed_fields.merge_rules cimport MergeRule as CMergeRule

@cython.locals(fields=CMapMergeRule, listed=CListMergeRule)
cdef object _compare(object old, object new, CMergeRule rule, dict removed, dict other, dict added)
cdef bint _lists(object old, object new)
@cython.locals(fields=dict, key=str)
cdef object _compare_maps(dict old, dict new, CMapMergeRule rule, dict removed, dict other, dict added)
@cython.locals(old_elements=dict, new_elements=dict, step=str, values=list, before=list)
cdef object _compare_lists(list old, list new, CListMergeRule rule, dict removed, dict other, dict added)
cdef object _compare_same_key(list before, list after, str step, CMergeRule rule, dict removed, dict other, dict added)
@cython.locals(left=dict, changed=dict, found=dict)
cdef object _compare_step(object before, object value, str step, CMergeRule rule, dict removed, dict other, dict added)
@cython.locals(below=CMapMergeRule, listed=CListMergeRule, steps=dict, known=tuple, found=dict, step=str, key=str)
cpdef dict added_fields(object value, CMergeRule rule)
@cython.locals(found=dict, step=str)
cdef dict _index_by_step(list values, CListMergeRule rule)
@cython.locals(keys=tuple)
cpdef str element_step(object each, CListMergeRule rule)
