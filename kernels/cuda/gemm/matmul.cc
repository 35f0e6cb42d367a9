#include "kernels/cuda/gemm/matmul.h"

#include <cublasLt.h>

#include <map>
#include <memory>
#include <sstream>
#include <tuple>
#include <type_traits>

namespace taopd::cuda {
namespace {

template <typename T, cublasStatus_t (*destroy)(T)>
struct Destroy {
  void operator()(T handle) const { destroy(handle); }
};
template <typename T, cublasStatus_t (*destroy)(T)>
using Owned = std::unique_ptr<std::remove_pointer_t<T>, Destroy<T, destroy>>;

using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// Returns the largest power of two that divides an address, up to the 256 that cuBLASLt uses.
uint32_t AlignmentOf(const void* pointer) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  uint32_t alignment = 256;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

// Everything that a choice of an algorithm depends on: the handle, which belongs to a device, the
// type, m, n, k, the strides of a, b and c, and as bits the transpositions and the alignments.
using ProblemKey =
    std::tuple<const void*, int, int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint64_t>;

// The algorithms that cuBLASLt has chosen for this thread: choosing takes as long as a small
// product.
std::map<ProblemKey, cublasLtMatmulAlgo_t>& KnownAlgorithms() {
  // Training has a dozen shapes. In inference, each number of rows is a shape.
  constexpr size_t kMostKnown = 4096;
  thread_local std::map<ProblemKey, cublasLtMatmulAlgo_t> known;
  if (known.size() >= kMostKnown) known.clear();
  return known;
}

// Keeps the first error of a sequence of calls.
class FirstError {
 public:
  void operator()(cublasStatus_t status, const char* what) {
    if (status == CUBLAS_STATUS_SUCCESS || !text_.empty()) return;
    text_ = std::string(what) + ": " + cublasLtGetStatusString(status);
  }
  const std::string& text() const { return text_; }
  bool ok() const { return text_.empty(); }

 private:
  std::string text_;
};

// A product as cuBLASLt takes it. After an error, some of these are null.
struct ProductDescription {
  Description operation;
  Layout a, b, c;
};

// cuBLASLt is column-major: row-major c = a b is column-major c^T = b^T a^T, where each row-major
// matrix is read as its transpose. Therefore b comes first and no data moves.
ProductDescription DescribeProduct(cudaDataType_t type, int64_t m, int64_t n, int64_t k,
                                   const Operand& a, const Operand& b, int64_t c_stride,
                                   FirstError* check) {
  ProductDescription product;
  cublasLtMatmulDesc_t operation = nullptr;
  (*check)(cublasLtMatmulDescCreate(&operation, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describe");
  product.operation.reset(operation);
  const auto set_transposed = [&](cublasLtMatmulDescAttributes_t attribute, bool transposed) {
    const cublasOperation_t value = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    if (!check->ok()) return;
    (*check)(cublasLtMatmulDescSetAttribute(operation, attribute, &value, sizeof(value)),
             "transpose");
  };
  set_transposed(CUBLASLT_MATMUL_DESC_TRANSA, b.transposed);
  set_transposed(CUBLASLT_MATMUL_DESC_TRANSB, a.transposed);
  const auto layout = [&](cudaDataType_t element, int64_t rows, int64_t columns, int64_t stride) {
    cublasLtMatrixLayout_t raw = nullptr;
    (*check)(cublasLtMatrixLayoutCreate(&raw, element, static_cast<uint64_t>(rows),
                                        static_cast<uint64_t>(columns), stride),
             "layout");
    return Layout(raw);
  };
  // The column-major shapes of the memory: a row-major [x, y] is a column-major [y, x].
  product.b = b.transposed ? layout(type, k, n, b.stride) : layout(type, n, k, b.stride);
  product.a = a.transposed ? layout(type, m, k, a.stride) : layout(type, k, m, a.stride);
  product.c = layout(CUDA_R_32F, n, m, c_stride);
  return product;
}

// Asks cuBLASLt for an algorithm. The alignments are those of the matrices.
cublasLtMatmulAlgo_t ChooseAlgorithm(cublasLtHandle_t handle, const ProductDescription& product,
                                     uint32_t a_alignment, uint32_t b_alignment,
                                     uint32_t c_alignment, FirstError* check) {
  cublasLtMatmulPreference_t raw_preference = nullptr;
  (*check)(cublasLtMatmulPreferenceCreate(&raw_preference), "preference");
  const Preference preference(raw_preference);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    if (!check->ok()) return;
    (*check)(cublasLtMatmulPreferenceSetAttribute(raw_preference, attribute, &value, sizeof(value)),
             "preference");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(kMatmulScratchBytes));
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, b_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, a_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, c_alignment);
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, c_alignment);
  cublasLtMatmulHeuristicResult_t heuristic = {};
  if (!check->ok()) return heuristic.algo;
  int num_found = 0;
  (*check)(cublasLtMatmulAlgoGetHeuristic(handle, product.operation.get(), product.b.get(),
                                          product.a.get(), product.c.get(), product.c.get(),
                                          raw_preference, 1, &heuristic, &num_found),
           "choose an algorithm");
  if (num_found == 0) (*check)(CUBLAS_STATUS_NOT_SUPPORTED, "choose an algorithm");
  return heuristic.algo;
}

}  // namespace

std::string Matmul(DataType inputs, int64_t m, int64_t n, int64_t k, const Operand& a,
                   const Operand& b, float beta, float* c, int64_t c_stride, void* scratch,
                   const DeviceContext& context) {
  if (m == 0 || n == 0) return "";
  const cudaDataType_t type = inputs == DataType::kBFloat16 ? CUDA_R_16BF : CUDA_R_32F;
  FirstError check;
  const ProductDescription product = DescribeProduct(type, m, n, k, a, b, c_stride, &check);
  const uint32_t a_alignment = AlignmentOf(a.data), b_alignment = AlignmentOf(b.data),
                 c_alignment = AlignmentOf(c);
  const uint64_t bits = uint64_t{b_alignment} << 40 | uint64_t{a_alignment} << 20 |
                        uint64_t{c_alignment} << 2 | uint64_t{a.transposed} << 1 |
                        uint64_t{b.transposed};
  const ProblemKey key(context.cublaslt, static_cast<int>(type), m, n, k, a.stride, b.stride,
                       c_stride, bits);
  auto& known = KnownAlgorithms();
  auto algorithm = known.find(key);
  if (check.ok() && algorithm == known.end()) {
    const cublasLtMatmulAlgo_t chosen =
        ChooseAlgorithm(context.cublaslt, product, a_alignment, b_alignment, c_alignment, &check);
    if (check.ok()) algorithm = known.emplace(key, chosen).first;
  }
  const float one = 1;
  if (check.ok()) {
    check(cublasLtMatmul(context.cublaslt, product.operation.get(), &one, b.data, product.b.get(),
                         a.data, product.a.get(), &beta, c, product.c.get(), c, product.c.get(),
                         &algorithm->second, scratch, static_cast<size_t>(kMatmulScratchBytes),
                         context.stream),
          "multiply");
  }
  if (check.ok()) return "";
  std::ostringstream problem;
  problem << "cuBLASLt matmul [" << m << ", " << k << "] x [" << k << ", " << n << "] of "
          << (inputs == DataType::kBFloat16 ? "bfloat16" : "float32") << ": " << check.text();
  return problem.str();
}

}  // namespace taopd::cuda
