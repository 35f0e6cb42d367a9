# Sets taopd_download_dir, the directory into which deploy/setup puts LibTorch, Arrow and xgrammar.
if(DEFINED ENV{TAOPD_DEPS})
  set(taopd_download_dir $ENV{TAOPD_DEPS})
elseif(DEFINED ENV{XDG_CACHE_HOME})
  set(taopd_download_dir $ENV{XDG_CACHE_HOME}/taopd)
else()
  set(taopd_download_dir $ENV{HOME}/.cache/taopd)
endif()

# Ends the configuration with the problem. The next one reads the environment again.
function(taopd_refuse_dependency problem)
  unset(TAOPD_DEPS CACHE)
  message(FATAL_ERROR "${problem}. Run deploy/setup, or set TAOPD_DEPS.")
endfunction()
