# The architectures that the CUDA kernels are compiled for; nowhere else is a list of them. Machine code for Ampere (A100: 80, and 86),
# Ada (89), Hopper (90a: what only sm_90a has) and Blackwell (100), and PTX of the newest, which the driver compiles for later devices.
# common/model/cuda_requirements.h refuses devices on which none of them runs.
set(TAOPD_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 100-real 100-virtual)
