# The architectures that the CUDA kernels are compiled for; tests/gpu/run --compile reads them here.
# There is machine code for Ampere (80 for an A100, 86 for an A10), Ada (89), Hopper (90a, with the
# instructions that only Hopper has) and Blackwell (100), and PTX of the newest, which the driver
# compiles for later devices. common/model/cuda_requirements.h refuses devices on which none runs.
set(TAOPD_CUDA_ARCHITECTURES 80-real 86-real 89-real 90a-real 100-real 100-virtual)
