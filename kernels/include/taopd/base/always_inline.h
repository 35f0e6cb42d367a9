// TAOPD_ALWAYS_INLINE is for functions that are compiled for several instruction sets in one
// program: none of them may be left for the linker to choose from.
#pragma once

#ifdef __CUDACC__
#define TAOPD_ALWAYS_INLINE inline
#else
#define TAOPD_ALWAYS_INLINE inline __attribute__((always_inline))
#endif
