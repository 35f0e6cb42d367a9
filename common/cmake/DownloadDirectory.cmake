# Sets taopd_download_dir, the directory into which deploy/setup puts LibTorch, Arrow and xgrammar.
if(NOT "$ENV{TAOPD_DEPS}" STREQUAL "")
  set(taopd_download_dir $ENV{TAOPD_DEPS})
elseif(NOT "$ENV{XDG_CACHE_HOME}" STREQUAL "")
  set(taopd_download_dir $ENV{XDG_CACHE_HOME}/taopd)
else()
  set(taopd_download_dir $ENV{HOME}/.cache/taopd)
endif()

# Sets `variable` to PACKAGE-VERSION, which deploy/wheels/FILE.txt names. The directory of the
# unpacked wheel has this name.
function(taopd_wheel variable package file)
  file(STRINGS ${CMAKE_CURRENT_FUNCTION_LIST_DIR}/../../deploy/wheels/${file}.txt wheel
       REGEX "^${package}==")
  string(REGEX REPLACE "==([0-9.]+).*" "-\\1" wheel "${wheel}")
  set(${variable} ${wheel} PARENT_SCOPE)
endfunction()

# Ends the configuration with the problem. The next one reads the environment again.
function(taopd_refuse_dependency problem)
  unset(TAOPD_DEPS CACHE)
  message(FATAL_ERROR "${problem}. Run deploy/setup, or set TAOPD_DEPS.")
endfunction()
