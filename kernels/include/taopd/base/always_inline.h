// TAOPD_ALWAYS_INLINE marks functions that one program compiles for several instruction sets. They
// must leave no copy behind, because the linker would pick any one of the copies for all callers.
#pragma once

#ifdef __CUDACC__
#define TAOPD_ALWAYS_INLINE inline
#else
#define TAOPD_ALWAYS_INLINE inline __attribute__((always_inline))
#endif
