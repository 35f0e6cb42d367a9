// The CUDA kernels of the layers and of AdamW against the CPU's, which ATen checks.
#include "taopd/layers/norms_and_swiglu.h"

#include <cmath>

#include "taopd/layers/adamw.h"
#include "tests/kernels/cuda/device_array.h"
#include "tests/kernels/layer_problem.h"
#include "tests/kernels/one_thread.h"

namespace taopd::testing {
namespace {

// Sums in another order and another exp, relative to numbers of size 1 to 30. A bfloat16 result may
// be one rounding (2^-8) apart, or two if a rounded factor differs.
double ToleranceOf(DataType type) { return type == DataType::kFloat32 ? 1e-5 : 0.02; }

// The bytes of a host array on the device, which are copied back on request.
class OnDevice {
 public:
  explicit OnDevice(Stored* host) : host_(host), device_(host->bytes) {}
  uint8_t* data() { return device_.data(); }
  void Fetch() { host_->bytes = device_.Values(); }

 private:
  Stored* host_;
  DeviceArray<uint8_t> device_;
};

void ExpectNear(const Stored& ours, const Stored& expected, const char* what, int64_t size) {
  const std::vector<float> a = ours.Values(), b = expected.Values();
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    ASSERT_NEAR(a[i], b[i], ToleranceOf(ours.type) * (1 + std::abs(b[i])))
        << what << " " << i << " of rows of " << size;
  }
}

class CudaLayersTest : public CudaTest, public ::testing::WithParamInterface<DataType> {};

TEST_P(CudaLayersTest, RmsNormMatchesTheCpu) {
  for (int64_t num_rows : {0, 1, 39}) {
    for (int64_t size : {1, 96, 300}) {
      for (bool has_added : {false, true}) {
        RmsNormArrays cpu(GetParam(), num_rows, size, has_added), ours = cpu;
        cpu::NormalizeRows(cpu.Forward(), OneThread);
        cpu::NormalizeRowsBackward(cpu.Backward(), OneThread);
        OnDevice x(&ours.x), added(&ours.added), weight(&ours.weight), d_normed(&ours.d_normed),
            d_sum(&ours.d_sum), sum(&ours.sum), normed(&ours.normed), d_x(&ours.d_x),
            d_weight(&ours.d_weight);
        DeviceArray<float> inverse_rms(num_rows), partials(NumPartials(num_rows) * size);
        ASSERT_EQ(RmsNormForwardCuda(
                      {GetParam(), num_rows, size, 1e-6f, x.data(),
                       has_added ? added.data() : nullptr, weight.data(),
                       has_added ? sum.data() : nullptr, normed.data(), inverse_rms.data()},
                      {}),
                  "");
        ASSERT_EQ(RmsNormBackwardCuda(
                      {GetParam(), num_rows, size, has_added ? sum.data() : x.data(), weight.data(),
                       inverse_rms.data(), d_normed.data(), has_added ? d_sum.data() : nullptr,
                       d_x.data(), d_weight.data(), partials.data()},
                      {}),
                  "");
        for (OnDevice* array : {&sum, &normed, &d_x, &d_weight}) array->Fetch();
        if (has_added) ExpectNear(ours.sum, cpu.sum, "sum", size);
        ExpectNear(ours.normed, cpu.normed, "normed", size);
        ExpectNear(ours.d_x, cpu.d_x, "d_x", size);
        ExpectNear(ours.d_weight, cpu.d_weight, "d_weight", size);
      }
    }
  }
}

TEST_P(CudaLayersTest, HeadsMatchTheCpu) {
  for (int64_t num_tokens : {0, 1, 35}) {
    for (int64_t head_size : {2, 32, 128, 130, 514}) {
      for (bool has_norm : {false, true}) {
        HeadsArrays cpu(GetParam(), num_tokens, 3, head_size, has_norm), ours = cpu;
        cpu::RotateHeads(cpu.Forward(), OneThread);
        cpu::RotateHeadsBackward(cpu.Backward(), OneThread);
        OnDevice x(&ours.x), weight(&ours.weight), cos(&ours.cos), sin(&ours.sin),
            d_out(&ours.d_out), out(&ours.out), d_x(&ours.d_x), d_weight(&ours.d_weight);
        DeviceArray<float> inverse_rms(num_tokens * 3),
            partials(NumPartials(num_tokens) * head_size);
        const void* const norm = has_norm ? weight.data() : nullptr;
        ASSERT_EQ(HeadsForwardCuda({GetParam(), num_tokens, 3, head_size, 1e-6f, x.data(), norm,
                                    cos.data(), sin.data(), out.data(), inverse_rms.data()},
                                   {}),
                  "");
        ASSERT_EQ(HeadsBackwardCuda(
                      {GetParam(), num_tokens, 3, head_size, x.data(), norm, inverse_rms.data(),
                       cos.data(), sin.data(), d_out.data(), head_size, num_tokens * head_size,
                       d_x.data(), d_weight.data(), partials.data()},
                      {}),
                  "");
        for (OnDevice* array : {&out, &d_x, &d_weight}) array->Fetch();
        ExpectNear(ours.out, cpu.out, "out", head_size);
        ExpectNear(ours.d_x, cpu.d_x, "d_x", head_size);
        if (has_norm) ExpectNear(ours.d_weight, cpu.d_weight, "d_weight", head_size);
      }
    }
  }
}

TEST_P(CudaLayersTest, SwiGluMatchesTheCpu) {
  for (int64_t size : {0, 1, 255, 256, 1000, 1024, 2500}) {
    SwiGluArrays cpu(GetParam(), size), ours = cpu;
    cpu::ComputeSwiGlu(cpu.Forward(), OneThread);
    cpu::ComputeSwiGluBackward(cpu.Backward(), OneThread);
    OnDevice gate(&ours.gate), up(&ours.up), d_y(&ours.d_y), y(&ours.y), d_gate(&ours.d_gate),
        d_up(&ours.d_up);
    ASSERT_EQ(SwiGluForwardCuda({GetParam(), size, gate.data(), up.data(), y.data()}, {}), "");
    ASSERT_EQ(
        SwiGluBackwardCuda(
            {GetParam(), size, gate.data(), up.data(), d_y.data(), d_gate.data(), d_up.data()}, {}),
        "");
    for (OnDevice* array : {&y, &d_gate, &d_up}) array->Fetch();
    ExpectNear(ours.y, cpu.y, "y", size);
    ExpectNear(ours.d_gate, cpu.d_gate, "d_gate", size);
    ExpectNear(ours.d_up, cpu.d_up, "d_up", size);
  }
}

INSTANTIATE_TEST_SUITE_P(Types, CudaLayersTest,
                         ::testing::Values(DataType::kFloat32, DataType::kBFloat16), NameOfType);

class CudaAdamWTest : public CudaTest {};

// Stochastic rounding takes its bits from a key: with another one, about half of the elements would
// go to the other neighbor, which ExpectNear allows.
void ExpectSameRounding(const Stored& actual, const Stored& expected) {
  size_t num_different = 0;
  for (size_t i = 0; i < expected.bytes.size(); i += 2) {
    num_different +=
        actual.bytes[i] != expected.bytes[i] || actual.bytes[i + 1] != expected.bytes[i + 1];
  }
  EXPECT_LE(num_different, expected.bytes.size() / 2 / 100);
}

TEST_F(CudaAdamWTest, MatchesTheCpu) {
  const std::vector<int64_t> sizes = {5, 0, kAdamWBlock + 3, 1};
  constexpr AdamWSettings kSettings = {0.01, 0.9, 0.98, 1e-8, 4, 0.5};
  for (DataType type : {DataType::kFloat32, DataType::kBFloat16}) {
    // bfloat16 moments with bfloat16 gradients.
    std::vector<std::vector<Stored>> host;  // gradient, master, exp_avg, exp_avg_sq, bfloat16
    std::vector<std::unique_ptr<OnDevice>> device;
    for (size_t i = 0; i < sizes.size(); ++i) {
      host.push_back({Normal(type, sizes[i], i), Normal(DataType::kFloat32, sizes[i], i + 10),
                      Normal(type, sizes[i], i + 20), Normal(type, sizes[i], i + 30, 0.01f, 1),
                      Normal(DataType::kBFloat16, sizes[i], i + 40)});
    }
    std::vector<std::vector<Stored>> ours = host;
    std::vector<std::vector<uint8_t>> before;
    for (const auto& arrays : host) before.push_back(arrays[4].bytes);
    std::vector<AdamWTensor> on_cpu, on_device;
    for (size_t i = 0; i < sizes.size(); ++i) {
      const auto tensor = [&](auto place) {
        AdamWTensor tensor;
        tensor.size = sizes[i];
        tensor.gradient_type = tensor.moments_type = type;
        tensor.gradient = place(0);
        // The weights of the large tensor have no master.
        if (i + 2 != sizes.size()) tensor.master = static_cast<float*>(place(1));
        tensor.exp_avg = place(2);
        tensor.exp_avg_sq = place(3);
        tensor.bfloat16 = static_cast<uint16_t*>(place(4));
        tensor.weight_decay = 0.1f;
        tensor.parameter = static_cast<int64_t>(i);
        tensor.first_element = 7;
        return tensor;
      };
      const size_t first = device.size();
      for (Stored& array : ours[i]) device.push_back(std::make_unique<OnDevice>(&array));
      on_cpu.push_back(tensor([&](size_t j) { return host[i][j].Out(); }));
      on_device.push_back(
          tensor([&](size_t j) { return static_cast<void*>(device[first + j]->data()); }));
    }
    NumberBlocks(&on_cpu);
    const int64_t num_blocks = NumberBlocks(&on_device);
    DeviceArray<AdamWTensor> tensors(on_device);
    DeviceArray<double> sums(num_blocks);
    const auto count = static_cast<int32_t>(sizes.size());
    ASSERT_EQ(SumsOfSquaresCuda(tensors.data(), count, num_blocks, sums.data(), {}), "");
    double total = 0;
    for (double sum : sums.Values()) total += sum;
    const double expected = cpu::SumOfSquares(on_cpu, OneThread);
    EXPECT_NEAR(total, expected, 1e-6 * expected);
    ASSERT_EQ(AdamWCuda(kSettings, tensors.data(), count, num_blocks, {}), "");
    cpu::AdamW(kSettings, on_cpu, OneThread);
    for (auto& array : device) array->Fetch();
    for (size_t i = 0; i < sizes.size(); ++i) {
      for (size_t j : {1u, 2u, 3u, 4u}) ExpectNear(ours[i][j], host[i][j], "adamw", sizes[i]);
      if (i + 2 == sizes.size()) {
        EXPECT_NE(host[i][4].bytes, before[i]);
        ExpectSameRounding(ours[i][4], host[i][4]);
        if (type == DataType::kBFloat16) {
          for (size_t j : {2u, 3u}) ExpectSameRounding(ours[i][j], host[i][j]);
        }
      }
    }
  }
}

}  // namespace
}  // namespace taopd::testing
