// TAOPD_ALWAYS_INLINE marks functions that one program compiles for several instruction sets. No
// out-of-line copy of them may exist, because the linker would pick any one copy for all callers.
#pragma once

#ifdef __CUDACC__
#define TAOPD_ALWAYS_INLINE inline
#else
#define TAOPD_ALWAYS_INLINE inline __attribute__((always_inline))
#endif
