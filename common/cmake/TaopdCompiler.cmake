# Warnings, sanitizers, the compiler cache and the linker.
add_compile_options($<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-Wall>
                    $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-Wextra>
                    $<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-Wno-unused-parameter>)
# For every file, because a precompiled header made without it is refused by files that have it (gRPC's
# and Abseil's targets ask for it).
add_compile_options($<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-pthread>)
# Likewise: what uses LibTorch is compiled with it (TaopdTorch.cmake). The tree has no OpenMP directives.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
# Programs are compiled as libraries are (-fPIC, not -fPIE), so that they can use the same precompiled
# header.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)
# -O2: the numeric loops are LibTorch's and the kernels', which ask for more where it was measured to help;
# the rest compiles a third faster.
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
  add_compile_definitions(_GLIBCXX_ASSERTIONS)
endif()
# GCC spends a tenth of a compilation on garbage collection. A heap of up to 1 GB avoids that.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>)
# Results must not depend on which processor compiled the code: no -march=native, no fused
# contraction outside of the kernels that ask for it.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

if(TAOPD_SANITIZE)
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${TAOPD_SANITIZE}>
                      $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>)
  # Without this, UndefinedBehaviorSanitizer prints a line and the test passes.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
  add_link_options(-fsanitize=${TAOPD_SANITIZE})
endif()

option(TAOPD_FUZZ "Build libFuzzer programs (clang): the target fuzzers" OFF)
if(TAOPD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "TAOPD_FUZZ needs clang; the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  # Coverage of every library, and of the precompiled headers that they use.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# Paths in messages (__FILE__) are relative to the tree, so the same source gives the same object in any directory.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)

find_program(TAOPD_CCACHE ccache)
if(TAOPD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # base_dir and nohashdir let two build directories or clones share results; the sloppiness is
  # what ccache needs to cache files that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}
      CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${TAOPD_CCACHE})
endif()

find_program(TAOPD_LLD ld.lld)
# A cross compiler looks for it under another name.
if(TAOPD_LLD AND NOT TAOPD_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  # Not mold: Debian 12's is built with a oneTBB (2021.8) that deadlocks now and then, and a link that hangs
  # takes the whole build with it. One thread per link, because ninja already runs one link per core.
  add_link_options(-fuse-ld=lld -Wl,--threads=1)
endif()
