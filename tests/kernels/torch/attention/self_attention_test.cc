// The attention of a layer and its gradients against a composition in float64.
#include "kernels/torch/attention/self_attention.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cpu/attention/causal/causal_attention.h"
#include "kernels/torch/layers/norms_and_swiglu.h"
#include "kernels/torch/parallel_loop.h"
#include "tests/kernels/cpu/supported_sets.h"
#include "tests/kernels/torch/gradient_problem.h"

namespace taopd::testing {
namespace {

struct Shape {
  int64_t num_heads, num_kv_heads, head_size, sliding_window;
  std::vector<int64_t> cu_seqlens;
  std::vector<int64_t> parents;
};

int64_t NumRows(const Shape& shape) { return shape.cu_seqlens.back(); }

SelfAttentionOptions OptionsOf(const Shape& shape) {
  return {shape.num_heads,      shape.num_kv_heads, 1e-6,
          shape.sliding_window, shape.cu_seqlens,   shape.parents};
}

// Returns the positions of rows: those of a sequence with a parent follow the parent's.
std::vector<int64_t> Positions(const Shape& shape) {
  std::vector<int64_t> positions;
  for (size_t i = 0; i + 1 < shape.cu_seqlens.size(); ++i) {
    const int64_t parent = shape.parents.empty() ? -1 : shape.parents[i];
    const int64_t first = parent < 0 ? 0 : shape.cu_seqlens[parent + 1] - shape.cu_seqlens[parent];
    for (int64_t t = shape.cu_seqlens[i]; t < shape.cu_seqlens[i + 1]; ++t) {
      positions.push_back(first + t - shape.cu_seqlens[i]);
    }
  }
  return positions;
}

struct Tables {
  at::Tensor cos_T1D, sin_T1D;
};

Tables TablesOf(const Shape& shape, at::ScalarType dtype) {
  const int64_t half = shape.head_size / 2;
  const at::Tensor angles =
      at::tensor(Positions(shape), at::kDouble).unsqueeze(1) *
      at::pow(0.1, at::arange(half, at::kDouble) / static_cast<double>(half)).unsqueeze(0);
  const at::Tensor sin = angles.sin();
  return {at::cat({angles.cos(), angles.cos()}, 1).unsqueeze(1).to(dtype),
          at::cat({sin.neg(), sin}, 1).unsqueeze(1).to(dtype)};
}

// Returns 0 where row t sees row s, and -inf elsewhere.
at::Tensor Mask(const Shape& shape) {
  const int64_t T = NumRows(shape);
  const std::vector<int64_t> positions = Positions(shape);
  std::vector<int64_t> sequence_of;
  for (size_t i = 0; i + 1 < shape.cu_seqlens.size(); ++i) {
    sequence_of.resize(static_cast<size_t>(shape.cu_seqlens[i + 1]), static_cast<int64_t>(i));
  }
  at::Tensor mask = at::full({T, T}, -INFINITY, at::kDouble);
  auto at_TT = mask.accessor<double, 2>();
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t s = 0; s < T; ++s) {
      const bool related =
          sequence_of[s] == sequence_of[t] ||
          (!shape.parents.empty() && shape.parents[sequence_of[t]] == sequence_of[s]);
      const int64_t distance = positions[t] - positions[s];
      const bool visible = related && distance >= 0 &&
                           (shape.sliding_window == 0 || distance < shape.sliding_window);
      if (visible) at_TT[t][s] = 0;
    }
  }
  return mask;
}

at::Tensor Composition(const Shape& shape, const at::Tensor& qkv, const at::Tensor& q_norm,
                       const at::Tensor& k_norm, at::ScalarType table_type) {
  const int64_t T = NumRows(shape), N = shape.num_heads, K = shape.num_kv_heads,
                D = shape.head_size;
  const Tables tables = TablesOf(shape, table_type);
  const auto heads = [&](int64_t first, int64_t num) {
    return qkv.narrow(1, first * D, num * D).reshape({T, num, D});
  };
  const at::Tensor cos = tables.cos_T1D.to(at::kDouble), sin = tables.sin_T1D.to(at::kDouble);
  const at::Tensor q = NormRotateHeads(heads(0, N), q_norm, 1e-6, cos, sin);
  const at::Tensor k = NormRotateHeads(heads(N, K), k_norm, 1e-6, cos, sin);
  const auto repeated = [&](const at::Tensor& x) {
    return x.repeat_interleave(N / K, 1).transpose(0, 1);
  };
  const at::Tensor scores =
      at::matmul(q.transpose(0, 1), repeated(k).transpose(1, 2)) / std::sqrt(double(D)) +
      Mask(shape);
  return at::matmul(scores.softmax(-1), repeated(heads(N + K, K)))
      .transpose(0, 1)
      .reshape({T, N * D});
}

// One head; grouped heads with an odd size; a window; sequences longer than a block of queries, of
// one row and empty; sequences that continue another one; several panels of head size or of keys,
// several tasks of queries, and a window that begins within a panel.
const std::vector<Shape>& Shapes() {
  static const auto* const shapes = new std::vector<Shape>{
      {1, 1, 8, 0, {0, 5}, {}},
      {4, 2, 10, 0, {0, 1, 1, 31, 130}, {}},
      {3, 3, 32, 0, {0, 54, 108, 160}, {}},
      {2, 1, 6, 7, {0, 40, 150}, {}},
      {2, 1, 16, 0, {0, 9, 29, 30, 130, 140, 150}, {-1, 0, 0, -1, -1, 4}},
      {2, 2, 4, 11, {0, 70, 100, 101, 180}, {-1, 0, 0, 0}},
      {2, 1, 72, 0, {0, 131, 560, 571}, {-1, 0, 0}},
      {1, 1, 6, 0, {0, 1101}, {}},
      {1, 1, 8, 600, {0, 61, 1100}, {-1, 0}},
  };
  return *shapes;
}

struct Values {
  std::vector<at::Tensor> inputs;  // qkv and the norms
  at::Tensor weights;
};

Values RandomValues(const Shape& shape, at::ScalarType dtype) {
  const int64_t T = NumRows(shape),
                C = (shape.num_heads + 2 * shape.num_kv_heads) * shape.head_size;
  return {{RandomTensor({T, C}, 1).to(dtype), RandomTensor({shape.head_size}, 2).to(dtype),
           RandomTensor({shape.head_size}, 3).to(dtype)},
          RandomTensor({T, shape.num_heads * shape.head_size}, 4).to(dtype)};
}

DifferentiableFunction Actual(const Shape& shape, at::ScalarType dtype) {
  return [shape, dtype](const std::vector<at::Tensor>& v) {
    const Tables tables = TablesOf(shape, dtype);
    return SelfAttention(v[0], v.size() > 1 ? v[1] : at::Tensor(),
                         v.size() > 1 ? v[2] : at::Tensor(), tables.cos_T1D, tables.sin_T1D,
                         OptionsOf(shape));
  };
}

TEST(SelfAttention, GradientsAreThoseOfFloat64) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    // bfloat16 rounds queries, keys, the result and its gradients.
    const double tolerance = dtype == at::kFloat ? 2e-5 : 0.03;
    for (size_t i = 0; i < Shapes().size(); ++i) {
      const Shape& shape = Shapes()[i];
      for (const bool with_norms : {true, false}) {
        Values values = RandomValues(shape, dtype);
        if (!with_norms) values.inputs.resize(1);
        ExpectGradients(
            Actual(shape, dtype),
            [&](const auto& v) {
              return Composition(shape, v[0], with_norms ? v[1] : at::Tensor(),
                                 with_norms ? v[2] : at::Tensor(), dtype);
            },
            values.inputs, values.weights, dtype, tolerance,
            "shape " + std::to_string(i) + ", " + c10::toString(dtype));
      }
    }
  }
}

TEST(SelfAttention, AddsToGradientTargets) {
  const Shape& shape = Shapes()[4];
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const Values values = RandomValues(shape, dtype);
    const auto composition = [&](const auto& v) {
      return Composition(shape, v[0], v[1], v[2], dtype);
    };
    ExpectAddsToTargets(Actual(shape, dtype), composition, values.inputs, values.weights, dtype,
                        {1, 2}, dtype == at::kFloat ? 2e-5 : 0.03);
  }
}

TEST(SelfAttention, ThreadsChangeNothing) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const Shape& shape : {Shapes()[1], Shapes()[4], Shapes()[6], Shapes()[7]}) {
      const Values values = RandomValues(shape, dtype);
      ExpectSameBitsWithAnyThreads(Actual(shape, dtype), values.inputs, values.weights, dtype);
    }
  }
}

// A sequence with a parent gives the same bits as when both are written out as one, and the
// gradients of the parent's rows are the sums over the sequences that continue it.
TEST(SelfAttention, AParentIsAsGoodAsACopy) {
  const Shape shared = {2, 1, 16, 0, {0, 70, 130, 140}, {-1, 0, 0}};
  const Shape written_out = {2, 1, 16, 0, {0, 70, 200, 280}, {}};
  std::vector<int64_t> rows;  // rows of `shared`, in the order of `written_out`
  for (int64_t t = 0; t < 70; ++t) rows.push_back(t);
  for (const auto& [begin, end] : {std::pair{70, 130}, {130, 140}}) {
    for (int64_t t = 0; t < 70; ++t) rows.push_back(t);
    for (int64_t t = begin; t < end; ++t) rows.push_back(t);
  }
  const at::Tensor index = at::tensor(rows, at::kLong);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    // The copies' gradients are rounded to bfloat16 before they are added up.
    const double tolerance = dtype == at::kFloat ? 1e-5 : 0.01;
    const Values values = RandomValues(shared, dtype);
    std::vector<at::Tensor> copied = values.inputs;
    copied[0] = copied[0].index_select(0, index);
    // The copies of the parent's rows do not contribute to the sum.
    at::Tensor weights = values.weights.index_select(0, index).clone();
    weights.narrow(0, 70, 70).zero_();
    weights.narrow(0, 200, 70).zero_();
    const auto a = Differentiate(Actual(shared, dtype), values.inputs, values.weights, dtype);
    const auto b = Differentiate(Actual(written_out, dtype), copied, weights, dtype);
    EXPECT_TRUE(at::equal(a.result.index_select(0, index), b.result)) << c10::toString(dtype);
    const at::Tensor summed = at::zeros_like(a.gradients[0], at::kDouble)
                                  .index_add_(0, index, b.gradients[0].to(at::kDouble));
    ExpectRelative(a.gradients[0], summed, tolerance, "q | k | v");
    ExpectRelative(a.gradients[1], b.gradients[1].to(at::kDouble), tolerance, "norm");
  }
}

TEST(SelfAttention, WrongShapesAreRefused) {
  const Shape shape = {2, 1, 4, 0, {0, 3, 6}, {-1, 0}};
  const Values values = RandomValues(shape, at::kFloat);
  const Tables tables = TablesOf(shape, at::kFloat);
  const auto attend = [&](const SelfAttentionOptions& options) {
    return SelfAttention(values.inputs[0], {}, {}, tables.cos_T1D, tables.sin_T1D, options);
  };
  EXPECT_NO_THROW(attend(OptionsOf(shape)));
  for (const auto& change : std::vector<std::function<void(SelfAttentionOptions*)>>{
           [](auto* o) { o->num_heads = 3; }, [](auto* o) { o->num_kv_heads = 0; },
           [](auto* o) {
             o->cu_seqlens = {0, 3};
           },
           [](auto* o) {
             o->cu_seqlens = {0, 7, 6};
           },
           [](auto* o) { o->parents = {-1}; },
           [](auto* o) {
             o->parents = {0, -1};
           },
           [](auto* o) {
             o->parents = {-1, 1};
           },
           [](auto* o) {
             o->parents = {-2, -1};
           }}) {
    SelfAttentionOptions options = OptionsOf(shape);
    change(&options);
    EXPECT_ANY_THROW(attend(options));
  }
  EXPECT_ANY_THROW(SelfAttention(values.inputs[0], values.inputs[1], {}, tables.cos_T1D,
                                 tables.sin_T1D, OptionsOf(shape)));
  EXPECT_ANY_THROW(SelfAttention(values.inputs[0].to(at::kHalf), {}, {}, tables.cos_T1D,
                                 tables.sin_T1D, OptionsOf(shape)));
  EXPECT_ANY_THROW(SelfAttention(values.inputs[0], {}, {}, tables.cos_T1D,
                                 tables.sin_T1D.to(at::kMeta), OptionsOf(shape)));
  const at::Tensor norm = at::ones({4});
  EXPECT_ANY_THROW(SelfAttention(values.inputs[0], norm, norm.to(at::kMeta), tables.cos_T1D,
                                 tables.sin_T1D, OptionsOf(shape)));
}

// The results and gradients of one set: out, sums, dq, dk, dv.
std::vector<at::Tensor> AttendWith(cpu::InstructionSet set, at::ScalarType dtype) {
  const int64_t T = 280, N = 4, K = 2, D = 24;
  const std::vector<int64_t> ends = {0, 10, 260, 280}, parents = {-1, 0, -1};
  const auto random = [&](int64_t heads, uint64_t seed) {
    return RandomTensor({T, heads, D}, seed).to(dtype);
  };
  const at::Tensor q = random(N, 1), k = random(K, 2), v = random(K, 3), d_out = random(N, 4);
  const at::Tensor out = at::empty_like(q), sums = at::empty({T, N}), dq = at::empty_like(q),
                   dk = at::empty_like(k), dv = at::empty_like(v);
  const auto fill = [&](cpu::CausalAttention* p) {
    p->dtype = dtype == at::kFloat ? DataType::kFloat32 : DataType::kBFloat16;
    p->cu_seqlens = ends.data();
    p->num_sequences = 3;
    p->parents = parents.data();
    p->num_heads = N;
    p->num_kv_heads = K;
    p->head_size = D;
    p->scale = 0.3f;
    p->q_TND = q.const_data_ptr();
    p->k_TKD = k.const_data_ptr();
    p->v_TKD = v.const_data_ptr();
    p->q_stride = N * D;
    p->k_stride = p->v_stride = K * D;
  };
  cpu::CausalAttentionForward forward;
  fill(&forward);
  forward.out_TND = out.mutable_data_ptr();
  forward.out_stride = N * D;
  forward.log_sum_exp_TN = sums.mutable_data_ptr<float>();
  cpu::AttendCausally(forward, TorchParallelFor(), set);
  cpu::CausalAttentionBackward backward;
  fill(&backward);
  backward.out_TND = out.const_data_ptr();
  backward.out_stride = backward.d_out_stride = backward.d_q_stride = N * D;
  backward.log_sum_exp_TN = sums.const_data_ptr<float>();
  backward.d_out_TND = d_out.const_data_ptr();
  backward.d_q_TND = dq.mutable_data_ptr();
  backward.d_k_TKD = dk.mutable_data_ptr();
  backward.d_v_TKD = dv.mutable_data_ptr();
  backward.d_k_stride = backward.d_v_stride = K * D;
  cpu::AttendCausallyBackward(backward, TorchParallelFor(), set);
  return {out, sums, dq, dk, dv};
}

// Compares every instruction set with the narrowest one. Sets with instructions for pairs round
// the weights of bfloat16 values.
TEST(CausalAttention, InstructionSetsAgree) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const double tolerance = dtype == at::kFloat ? 2e-5 : 0.01;
    const std::vector<at::Tensor> base = AttendWith(cpu::InstructionSet::kBase, dtype);
    for (const cpu::InstructionSet set : SupportedSets()) {
      const std::vector<at::Tensor> of_set = AttendWith(set, dtype);
      for (size_t i = 0; i < of_set.size(); ++i) {
        ExpectRelative(of_set[i], base[i].to(at::kDouble), tolerance,
                       std::string(cpu::NameOf(set)) + ", array " + std::to_string(i));
      }
    }
  }
}

}  // namespace
}  // namespace taopd::testing
