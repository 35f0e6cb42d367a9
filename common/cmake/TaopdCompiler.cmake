# Warnings, sanitizers, the compiler cache and the linker.
add_compile_options("$<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-Wall;-Wextra;-Wno-unused-parameter>")
option(TAOPD_WERROR "Make warnings errors" OFF)
if(TAOPD_WERROR)
  set(CMAKE_COMPILE_WARNING_AS_ERROR ON)
endif()
# Every file has -pthread, because gRPC's and Abseil's targets ask for it, and a file that has it
# cannot use a precompiled header that was made without it.
add_compile_options($<$<NOT:$<COMPILE_LANGUAGE:CUDA>>:-pthread>)
# Every file has -fopenmp for the same reason. The tree has no OpenMP directives, but without it
# ATen's header of at::parallel_for is serial: every loop of ours would run on one thread.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fopenmp>)
# Programs are compiled as libraries are (-fPIC, not -fPIE), so that they can use the same
# precompiled header.
set(CMAKE_CXX_COMPILE_OPTIONS_PIE -fPIC)
# -O2 compiles a third faster than -O3, CMake's default. The numeric loops are LibTorch's and the
# kernels', which ask for more where it was measured to help. Other flags are a user's own.
if(CMAKE_CXX_FLAGS_RELEASE STREQUAL "-O3 -DNDEBUG")
  set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
endif()
# This ends a program whose stack was overwritten, as a client's data might do. The builds with
# sanitizers detect more than that.
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fstack-protector-strong>)
endif()
# This checks indices and empty containers. The sanitizers do not see an index within a vector's
# capacity.
add_compile_definitions(_GLIBCXX_ASSERTIONS)
# GCC spends a tenth of a compilation on garbage collection. A heap of up to 1 GB avoids that.
add_compile_options($<$<COMPILE_LANG_AND_ID:CXX,GNU>:--param=ggc-min-heapsize=1000000>)
# Results must not depend on which processor compiled the code: no -march=native, no fused
# contraction outside of the kernels that ask for it.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-ffp-contract=off>)

if(TAOPD_SANITIZE)
  # Without -fno-sanitize-recover, UndefinedBehaviorSanitizer prints a line and the test passes. Its
  # check of virtual tables makes pipes, which the sandbox of taopd-grammar forbids.
  set(options -fsanitize=${TAOPD_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    -fno-sanitize=vptr)
  add_compile_options("$<$<COMPILE_LANGUAGE:CXX>:${options}>")
  add_link_options(-fsanitize=${TAOPD_SANITIZE})
endif()

option(TAOPD_FUZZ "Build libFuzzer programs (clang): the target fuzzers" OFF)
if(TAOPD_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES Clang)
    message(FATAL_ERROR "TAOPD_FUZZ needs clang; the compiler is ${CMAKE_CXX_COMPILER_ID}")
  endif()
  # libFuzzer needs the coverage of every library, and of the precompiled headers that they use.
  add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fsanitize=fuzzer-no-link>)
endif()

# Paths in messages (__FILE__) are relative to the tree, so the same source gives the same object in
# any directory.
add_compile_options($<$<COMPILE_LANGUAGE:CXX>:-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=>)

find_program(TAOPD_CCACHE ccache)
if(TAOPD_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  # With base_dir and nohashdir, two build directories or clones share results. Without the
  # sloppiness, ccache does not cache files that use a precompiled header.
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env
      CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1
      CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime
      ${TAOPD_CCACHE})
endif()

find_program(TAOPD_LLD ld.lld)
# A cross compiler looks for lld under another name.
if(TAOPD_LLD AND NOT TAOPD_SANITIZE AND NOT CMAKE_CROSSCOMPILING)
  # mold is not used, because Debian 12 builds it with a oneTBB (2021.8) that sometimes deadlocks,
  # which hangs the build. A link has one thread, because ninja already runs one link per core.
  add_link_options(-fuse-ld=lld -Wl,--threads=1)
endif()
