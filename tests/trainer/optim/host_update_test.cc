// Compares the host's update with the update of all states at once. The CPU stands in for the
// device.
#include "trainer/optim/host_update.h"

#include <gtest/gtest.h>

namespace taopd::testing {
namespace {

std::vector<AdamWState> MakeStates(at::ScalarType parameters, at::ScalarType moments,
                                   bool has_master) {
  at::manual_seed(3);
  std::vector<AdamWState> states;
  // The sizes cover less than a chunk, no elements, several chunks and exactly one.
  for (const int64_t size : {5, 0, 1000, 64, 33, 1}) {
    AdamWState state = {.parameter = at::randn({size}).to(parameters)};
    if (has_master) state.master = state.parameter.to(at::kFloat);
    state.gradient = at::randn({size});
    state.exp_avg = at::randn({size}).mul(0.1).to(moments);
    state.exp_avg_sq = at::rand({size}).to(moments);
    state.weight_decay = 0.1;
    state.number = static_cast<int64_t>(states.size());
    state.first_element = 7;
    states.push_back(state);
  }
  return states;
}

void ExpectSameBits(const std::vector<AdamWState>& a, const std::vector<AdamWState>& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_TRUE(at::equal(a[i].parameter, b[i].parameter)) << i;
    EXPECT_TRUE(at::equal(a[i].exp_avg, b[i].exp_avg)) << i;
    EXPECT_TRUE(at::equal(a[i].exp_avg_sq, b[i].exp_avg_sq)) << i;
    if (a[i].master.defined()) {
      EXPECT_TRUE(at::equal(a[i].master, b[i].master)) << i;
    }
  }
}

TEST(HostUpdate, HasTheBitsOfOneUpdateHoweverItIsCut) {
  for (const auto& [parameters, has_master] :
       {std::pair{at::kFloat, false}, {at::kBFloat16, true}, {at::kBFloat16, false}}) {
    for (const at::ScalarType moments : {at::kFloat, at::kBFloat16}) {
      for (const int64_t chunk_elements : {64, 96, 1 << 12}) {
        std::vector<AdamWState> at_once = MakeStates(parameters, moments, has_master);
        const std::vector<AdamWState> states = MakeStates(parameters, moments, has_master);
        if (parameters == at::kFloat) {
          for (AdamWState& state : at_once) state.master = state.parameter;
        }
        HostUpdate host(states, chunk_elements);
        for (int64_t step = 1; step <= 3; ++step) {
          const AdamWSettings settings = {0.01, 0.9, 0.95, 1e-8, step, 0.3};
          UpdateAdamW(settings, at_once);
          host.Update(settings);
        }
        if (parameters == at::kFloat) {
          for (AdamWState& state : at_once) state.master = at::Tensor();
        }
        ExpectSameBits(at_once, states);
      }
    }
  }
}

// A float32 vector among bfloat16 matrices.
TEST(HostUpdate, TakesParametersOfBothTypes) {
  const auto make = [] {
    std::vector<AdamWState> states = MakeStates(at::kBFloat16, at::kFloat, true);
    states[0] = MakeStates(at::kFloat, at::kFloat, false)[0];
    states[2] = MakeStates(at::kBFloat16, at::kFloat, false)[2];
    return states;
  };
  std::vector<AdamWState> at_once = make();
  const std::vector<AdamWState> states = make();
  at_once[0].master = at_once[0].parameter;
  HostUpdate(states, 64).Update({});
  UpdateAdamW({}, at_once);
  at_once[0].master = at::Tensor();
  ExpectSameBits(at_once, states);
}

TEST(HostUpdate, OfNothingDoesNothing) {
  HostUpdate({}, 64).Update({});
  HostUpdate(std::vector<AdamWState>(1, MakeStates(at::kFloat, at::kFloat, false)[1]), 64)
      .Update({});
}

}  // namespace
}  // namespace taopd::testing
