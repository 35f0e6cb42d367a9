// The source of the libraries to which the precompiled headers belong (CMakeLists.txt).
