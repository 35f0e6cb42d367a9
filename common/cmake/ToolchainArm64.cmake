# Cross-compiles for arm64 with Debian's compiler, on x86-64 (preset arm64). `deploy/setup --arm64`
# makes the folder $TAOPD_DEPS/arm64: `root` has arm64's packages, and beside it are the arm64
# wheels of LibTorch, Arrow and xgrammar. Test binaries run under qemu-user.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
include(${CMAKE_CURRENT_LIST_DIR}/DownloadDirectory.cmake)
set(taopd_arm64 ${taopd_download_dir}/arm64)
if(NOT EXISTS ${taopd_arm64}/root/usr/include)
  message(FATAL_ERROR "${taopd_arm64}/root has no packages of arm64. Run deploy/setup --arm64.")
endif()
set(TAOPD_DEPS ${taopd_arm64} CACHE PATH "Directory of the downloaded dependencies")

set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(CMAKE_SYSROOT ${taopd_arm64}/root)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static -L ${taopd_arm64}/root)

# protoc, the linker and ccache are programs of this machine; the libraries are those for arm64.
set(CMAKE_FIND_ROOT_PATH ${taopd_arm64}/root ${taopd_arm64})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_LIBDIR}
  ${taopd_arm64}/root/usr/lib/aarch64-linux-gnu/pkgconfig:${taopd_arm64}/root/usr/share/pkgconfig)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${taopd_arm64}/root)
