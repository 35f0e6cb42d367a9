#pragma once

namespace taopd {
inline constexpr char kTeacherVersion[] = TAOPD_VERSION;  // the project's version, from CMake
}  // namespace taopd
