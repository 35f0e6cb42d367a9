# Every external library, as a target. LibTorch comes last: its include directory holds other
# versions of protobuf and fmt, so only targets that link taopd_torch may see it.
#
# The versions are Debian 12's, the oldest that is tested. Abseil calls each release incompatible
# with the others, and prometheus-cpp does not state its version.
find_package(Threads REQUIRED)
find_package(absl REQUIRED)
find_package(Protobuf 3.21 REQUIRED)   # module mode: gRPC's own config expects these targets
find_package(gRPC 1.51 CONFIG REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(yaml-cpp 0.7 REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(spdlog 1.10 REQUIRED)
find_package(fmt 9.1 REQUIRED)
find_package(prometheus-cpp REQUIRED COMPONENTS core)
find_package(ICU 72 REQUIRED COMPONENTS uc i18n)
find_package(Boost 1.74 REQUIRED)  # headers
if(TAOPD_TESTS)
  find_package(GTest 1.12 REQUIRED)
  find_package(benchmark 1.7 REQUIRED)
endif()

# cpp-httplib: Debian ships a shared library and a pkg-config file. The definitions of that file
# (OpenSSL, zlib, brotli) decide the layout of its classes: without them a client's destructor frees
# memory that it does not own.
find_package(PkgConfig REQUIRED)
find_package(OpenSSL REQUIRED)
pkg_check_modules(RE2 REQUIRED IMPORTED_TARGET re2)
pkg_check_modules(TAOPD_HTTPLIB REQUIRED cpp-httplib)
add_library(taopd_httplib INTERFACE)
target_include_directories(taopd_httplib SYSTEM INTERFACE ${TAOPD_HTTPLIB_INCLUDE_DIRS})
target_compile_options(taopd_httplib INTERFACE ${TAOPD_HTTPLIB_CFLAGS_OTHER})
target_link_libraries(taopd_httplib
  INTERFACE ${TAOPD_HTTPLIB_LIBRARIES} OpenSSL::SSL OpenSSL::Crypto Threads::Threads)

# --- Downloaded libraries -----------------------------------------------------------------------
include(DownloadDirectory)
set(TAOPD_DEPS ${taopd_download_dir} CACHE PATH "Directory of the downloaded dependencies")

# --- Apache Arrow (Parquet) ---------------------------------------------------------------------
# The C++ libraries of the Python wheel, linked by full file name: the wheel has no lib*.so links.
# CMake's build rpath finds them at run time. Only common/io/parquet.cc includes their headers.
taopd_wheel(arrow pyarrow arrow)
string(REGEX MATCH "([0-9]+)\\.([0-9]+)" major_minor ${arrow})
math(EXPR arrow_so_version "100 * ${CMAKE_MATCH_1} + ${CMAKE_MATCH_2}")
find_path(TAOPD_ARROW_DIR NAMES include/parquet/arrow/reader.h
          PATHS ${TAOPD_DEPS}/${arrow}/pyarrow ${TAOPD_DEPS}/pyarrow
          NO_DEFAULT_PATH
          DOC "Apache Arrow: the directory that holds include/ and libarrow.so.*")
if(NOT TAOPD_ARROW_DIR)
  taopd_refuse_dependency("Apache Arrow is not in ${TAOPD_DEPS}")
endif()
add_library(taopd_arrow INTERFACE)
foreach(lib arrow parquet)
  add_library(taopd_lib${lib} SHARED IMPORTED GLOBAL)
  set_target_properties(taopd_lib${lib} PROPERTIES
    IMPORTED_LOCATION ${TAOPD_ARROW_DIR}/lib${lib}.so.${arrow_so_version}
    IMPORTED_SONAME lib${lib}.so.${arrow_so_version})
endforeach()
target_include_directories(taopd_arrow SYSTEM INTERFACE ${TAOPD_ARROW_DIR}/include)
target_link_libraries(taopd_arrow INTERFACE taopd_libparquet taopd_libarrow Threads::Threads)
# libparquet exports the OpenSSL that it contains. The loader must find the symbols of the system's
# OpenSSL first: a libcrypto that calls functions of both crashes when it loads the system's
# certificates.
target_link_options(taopd_arrow INTERFACE
  "LINKER:--no-as-needed,${OPENSSL_SSL_LIBRARY},${OPENSSL_CRYPTO_LIBRARY},--as-needed")

# --- xgrammar -----------------------------------------------------------------------------------
# The C++ libraries of two Python wheels; neither needs Python. xgrammar has no headers: its
# functions are found by name, with tvm-ffi's. Only taopd-grammar links them.
taopd_wheel(xgrammar xgrammar xgrammar)
find_path(TAOPD_XGRAMMAR_DIR NAMES tvm_ffi/include/tvm/ffi/function.h
          PATHS ${TAOPD_DEPS}/${xgrammar} ${TAOPD_DEPS}
          NO_DEFAULT_PATH DOC "xgrammar: the directory that holds xgrammar/ and tvm_ffi/")
if(NOT TAOPD_XGRAMMAR_DIR)
  taopd_refuse_dependency("xgrammar is not in ${TAOPD_DEPS}")
endif()
add_library(taopd_xgrammar INTERFACE)
foreach(file tvm_ffi/lib/libtvm_ffi.so xgrammar/libxgrammar_bindings.so)
  get_filename_component(name ${file} NAME)
  add_library(taopd_${name} SHARED IMPORTED GLOBAL)
  set_target_properties(taopd_${name} PROPERTIES
    IMPORTED_LOCATION ${TAOPD_XGRAMMAR_DIR}/${file} IMPORTED_SONAME ${name})
endforeach()
target_include_directories(taopd_xgrammar SYSTEM INTERFACE ${TAOPD_XGRAMMAR_DIR}/tvm_ffi/include)
# libxgrammar_bindings registers itself when it is loaded: it must stay although no symbol is named.
target_link_libraries(taopd_xgrammar INTERFACE
  -Wl,--no-as-needed taopd_libxgrammar_bindings.so -Wl,--as-needed taopd_libtvm_ffi.so)

# --- LibTorch and CUDA --------------------------------------------------------------------------
include(TaopdTorch)
