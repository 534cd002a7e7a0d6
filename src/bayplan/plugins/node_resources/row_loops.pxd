cimport cython

@cython.locals(rows=Py_ssize_t, row=Py_ssize_t, place=Py_ssize_t, whole=double, amount=double, weight=double, share=double)
cpdef least_allocated(double[:, ::1] left, double[:, ::1] has, tuple demand, object weights, double[::1] scores)

@cython.locals(row=Py_ssize_t, first=double, second=double, one=double, other=double, distance=double)
cpdef balanced_of_two(double[:, ::1] taken, double[:, ::1] has, tuple demand, long long[::1] offset, double[::1] scores)
