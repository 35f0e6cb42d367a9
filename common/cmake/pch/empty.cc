// Owner of the precompiled header; see TaopdTargets.cmake.
