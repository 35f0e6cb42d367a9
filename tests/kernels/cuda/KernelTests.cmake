# Sets cuda_kernel_tests, which are built for the emulated run-time here and for a GPU in tests/gpu.
set(cuda_kernel_tests
  attention/decode_step_test.cc
  attention/paged_attention_test.cc
  attention/rotate_and_append_test.cc
  head/fused_head_plan_test.cc
  head/fused_head_test.cc
  head/fused_scoring_test.cc
  layers/norms_and_swiglu_test.cc
  sampling/sample_rows_test.cc)
list(TRANSFORM cuda_kernel_tests PREPEND ${CMAKE_CURRENT_LIST_DIR}/)
