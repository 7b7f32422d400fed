"""The numba side: casts, elementary functions and summation orders as compiled scalars and loops.

Nothing outside a kernel imports this package, so that refkern itself never loads numba.  Compiled
functions are not cached on disk: numba's cache misses edits in imported helpers and writes into
site-packages.
"""
